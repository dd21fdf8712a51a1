"""The bytes of live tensors, now and at most, while something runs: what memory predictions are held to."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages of all tensors that are made inside, and of those it is told to watch, while they live.

    What a kernel takes and gives back by itself is not seen, nor is Python's or the allocator's own memory.
    """

    def __init__(self, watched: Iterable[Tensor] = ()):
        super().__init__()
        self.now, self.peak = 0, 0
        self._sizes: dict[int, int] = {}
        for tensor in watched:
            self.watch(tensor)

    def watch(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it dies."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.watch(leaf)
        return out
