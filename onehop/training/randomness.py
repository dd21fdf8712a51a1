"""The process's random generators, as far as a run uses them.

onehop's own code draws from generators that are passed to it, never from these. A user's own part may (`nn.Dropout`,
`random`): for a model with own parts the steps have states of their own, begun from the seed and kept in checkpoints.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

GENERATORS = "generator/"
TORCH, CUDA = f"{GENERATORS}torch", f"{GENERATORS}cuda"


def has_own_parts(model: nn.Module) -> bool:
    """Whether some part of the model is neither onehop's nor torch's, and may draw from whatever it likes."""
    return any(type(module).__module__.split(".")[0] not in ("onehop", "torch") for module in model.modules())


class Generators:
    """The states of torch's, numpy's and Python's generators inside a run; outside they are what they were."""

    def __init__(self, seed: int, device: torch.device):
        self.device = device
        outside = self._now()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self._inside = self._now()
        self._put(outside)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block that draws from the run's states."""
        outside = self._now()
        self._put(self._inside)
        try:
            yield
        finally:
            self._inside = self._now()
            self._put(outside)

    def tensors(self) -> dict[str, Tensor]:
        """The states of torch."""
        _, _, cpu, cuda = self._inside
        return {TORCH: cpu} | ({} if cuda is None else {CUDA: cuda})

    def about(self) -> dict[str, Any]:
        """The states of Python and numpy, as JSON."""
        python, (kind, keys, *more), _, _ = self._inside
        return {"python": python, "numpy": [kind, keys.tolist(), *more]}

    def restore(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Take up the states that `tensors` and `about` gave."""
        version, numbers, gauss = about["python"]
        kind, keys, *more = about["numpy"]
        numpy_state = (kind, np.array(keys, dtype=np.uint32), *more)
        self._inside = (version, tuple(numbers), gauss), numpy_state, tensors[TORCH], tensors.get(CUDA)

    def _now(self) -> tuple[Any, Any, Tensor, Tensor | None]:
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda

    def _put(self, states: tuple[Any, Any, Tensor, Tensor | None]) -> None:
        python, numpy_state, cpu, cuda = states
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, self.device)
