"""What a run takes, seen once: the peak of live tensor bytes in one step, when the optimizer has its state."""

from collections.abc import Callable, Iterable

import torch

from onehop.base.errors import ConfigError, OnehopError
from onehop.base.units import human_bytes
from onehop.config.recipe import Recipe
from onehop.cost.account import account, wishes
from onehop.cost.devices import Device, from_dict
from onehop.cost.planned import Asked, Plan
from onehop.machine import kept
from onehop.machine.here import peak_resident
from onehop.machine.live import LiveBytes
from onehop.training.optimizer import Optimizers
from onehop.training.speed import counts
from onehop.training.step import StepResult


class Tracked:
    """Watches the second step of a run on a CPU (a GPU's allocator knows its own peak), unless that is compiled.

    Whoever watches each operation keeps torch from using the graph: the step would have other sums.
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
        self.packed = False
        self._steps = 0
        self._live: int | None = None

    def step(self, take: Callable[[], StepResult], *, packed: bool, as_written: bool = True) -> StepResult:
        """Take a step; the second one, and no other, is watched, if it is computed `as_written`.

        packed: its rows have places of their own (`training/loss.py`).
        """
        self._steps += 1
        self.packed = packed if self._steps <= 2 else self.packed
        if self._steps != 2 or self.device.type != "cpu" or not as_written:
            return take()
        state = [x for held in self.optimizer.state.values() for x in held.values() if isinstance(x, torch.Tensor)]
        with LiveBytes([*self.model.parameters(), *self.model.buffers(), *state, *self.beside]) as live:
            result = take()
        self._live = live.peak
        return result

    @property
    def live(self) -> int | None:
        """Bytes of tensors at the peak; None where nothing was seen."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.device.type == "cuda" else self._live


def planned_line(recipe: Recipe, tracked: Tracked, *, precision: torch.dtype, tokens_per_s: float) -> str | None:
    """Planned beside measured, for the end of a run; None for a way to train that the planner does not know."""
    asked = _asked(recipe, precision, packed=tracked.packed)
    if asked is None:
        return None
    on_cpu = tracked.device.type == "cpu"
    device, why_not = _measured() if on_cpu else (None, "")
    line = account(
        recipe.model,
        asked,
        live=tracked.live,
        resident=peak_resident(),
        tokens_per_s=tokens_per_s,
        device=device,
        on_cpu=on_cpu,
    )
    return f"{line}; {why_not}" if why_not else line


def planned_peak(recipe: Recipe, *, precision: torch.dtype, packed: bool, on_cpu: bool) -> str | None:
    """The memory that is planned, for before the first step; None where `planned_line` has none.

    packed: rows have places of their own.
    """
    asked = _asked(recipe, precision, packed=packed)
    if asked is None:
        return None
    live = Plan(recipe.model).training_memory(asked, on_cpu=on_cpu).live
    return f"memory: {human_bytes(live)} of tensors planned at the peak of a step"


def _asked(recipe: Recipe, precision: torch.dtype, *, packed: bool) -> Asked | None:
    """The recipe as the planner is asked for it."""
    if not counts(recipe):
        return None
    context = recipe.train.context or recipe.model.max_len
    wish = {**wishes(recipe.train, context, packed=packed), "precision": str(precision).removeprefix("torch.")}
    try:
        return Asked(**wish)
    except OnehopError:
        return None


def _measured() -> tuple[Device | None, str]:
    """This machine as it was measured, if it was; or what is wrong with that, for which no run fails."""
    try:
        found = kept.load()
        return None if found is None else from_dict(found), ""
    except ConfigError as error:
        return None, str(error)
