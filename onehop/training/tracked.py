"""What a run takes, seen: the peak of live tensor bytes in a step, when the optimizer has its state."""

from collections.abc import Callable, Iterable, Sequence

import torch

from onehop.data.loader import Batch
from onehop.machine.live import LiveBytes
from onehop.training.loss import places
from onehop.training.optimizer import Optimizers
from onehop.training.step import StepResult

Size = tuple[int, ...]


class Tracked:
    """Watches the second step of a run on a CPU and each that is larger than those before, unless it is compiled.

    Larger: of several micro-batches, of packed rows, of wider ones. So few steps are that a run is no slower. A GPU's
    allocator knows its own peak. Whoever watches each operation keeps torch from using the graph: the step would have
    other sums.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        device: torch.device,
        *,
        beside: Iterable[torch.Tensor] = (),
    ):
        """beside: other tensors that live as long as the run."""
        self.model, self.optimizer, self.device, self.beside = model, optimizer, device, list(beside)
        self.watched = 0  # steps
        self._begun = False
        self._largest: Size = ()
        self._live: int | None = None

    def step(self, take: Callable[[], StepResult], *, size: Size, as_written: bool = True) -> StepResult:
        """Take a step of this `size`, and watch it if it is larger than those before and computed `as_written`."""
        begun, self._begun = self._begun, True
        larger = not self._largest or any(a > b for a, b in zip(size, self._largest, strict=True))
        if not begun or not larger or self.device.type != "cpu" or not as_written:
            return take()
        state = [x for held in self.optimizer.state.values() for x in held.values() if isinstance(x, torch.Tensor)]
        with LiveBytes([*self.model.parameters(), *self.model.buffers(), *state, *self.beside]) as live:
            result = take()
        self._largest = tuple(map(max, size, self._largest)) if self._largest else size
        self._live, self.watched = max(live.peak, self._live or 0), self.watched + 1
        return result

    @property
    def live(self) -> int | None:
        """Bytes of tensors at the peak; None where nothing was seen."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.device.type == "cuda" else self._live


def size_of(model: torch.nn.Module, batches: Sequence[Batch]) -> Size:
    """What makes a step large: several micro-batches, rows with places of their own, their widths, padded sources."""
    packed = any(places(model, batch) is not None for batch in batches)  # type: ignore[arg-type]
    width = max(batch.tokens.size(1) for batch in batches)
    sources = [batch.source.size(1) for batch in batches if batch.source is not None]
    padded = any(batch.source_at is not None for batch in batches)
    return int(len(batches) > 1), int(packed), width, max(sources, default=0), int(padded)
