"""What a step of a run is planned to hold, told before the first one; and at the end, beside what was held."""

from dataclasses import dataclass, replace

import torch

from onehop.base.errors import ConfigError, OnehopError
from onehop.base.units import human_bytes
from onehop.cost.account import account, wishes
from onehop.cost.devices import Device, from_dict
from onehop.cost.planned import Asked, Plan
from onehop.data.loader import Batch
from onehop.data.pairs import Width
from onehop.machine import kept
from onehop.machine.here import peak_resident
from onehop.training.loss import places
from onehop.training.randomness import Generators
from onehop.training.rehearsal import rehearsed_peak
from onehop.training.schedule import parts
from onehop.training.speed import counts
from onehop.training.trainer import Trainer

REHEARSED = 2  # micro-batches: further ones find the gradients of others too


@dataclass(frozen=True)
class Forecast:
    """Bytes of tensors at the peak of the largest step to come; at_most: no step may be as large as is planned for.

    asked: the recipe as the planner is asked for it; None for what it does not count, of which a step is rehearsed.
    """

    live: float
    at_most: bool = False
    asked: Asked | None = None

    @property
    def words(self) -> str:
        """'12 MB', or 'at most 12 MB'."""
        return f"{'at most ' * self.at_most}{human_bytes(self.live)}"

    @property
    def line(self) -> str:
        """For before the first step."""
        return f"memory: {self.words} of tensors planned at the peak of a step"


def forecast(t: Trainer) -> Forecast | None:
    """The peak that is planned, for rows as wide and as packed as the text can make them, and whole batches.

    By arithmetic where all weights of one stack learn; else the step is rehearsed. None where neither is possible.
    """
    cfg, on_cpu = t.recipe.train, t.device.type == "cpu"
    micro = parts(max(cfg.steps - 1, 0), cfg)
    batch, at_most = _largest(t)
    if plain(t):
        asked = _asked(t, micro=micro, packed=places(t.model, batch) is not None)
        memory = None if asked is None else Plan(t.recipe.model).training_memory(asked, on_cpu=on_cpu)
        return None if memory is None else Forecast(memory.live, asked=asked)
    beside = () if t.average is None else t.average.tensors().values()
    with Generators(cfg.seed, t.device).inside():  # a part of the user's own may draw, and the run's states stay
        batches = [batch] * min(micro, REHEARSED)
        live = rehearsed_peak(t.model, cfg, batches, precision=t.precision, beside=beside)
    return None if live is None else Forecast(live, at_most)


def plain(t: Trainer) -> bool:
    """Whether the planner's arithmetic is that of the run: one stack, every weight of which learns."""
    return t.recipe.model.encoder is None and all(p.requires_grad for p in t.model.parameters())


def told(found: Forecast, t: Trainer, *, tokens_per_s: float) -> str:
    """The line for the end of a run: what was planned beside what it took."""
    device, why_not = _measured() if t.device.type == "cpu" else (None, "")
    speed = None
    if device is not None and device.flops and found.asked is not None and counts(t.recipe):
        speed = Plan(t.recipe.model).times(device, found.asked)["training"].tokens_per_s
    line = account(
        found.live,
        words=found.words,
        live=t.tracked.live,
        resident=peak_resident(),
        tokens_per_s=tokens_per_s,
        expected=speed,
        device=device,
    )
    return f"{line}; {why_not}" if why_not else line


def _largest(t: Trainer) -> tuple[Batch, bool]:
    """A batch as large as one can be, and whether none may be."""
    batch = t.placed(t.loader.batch(t.progress.batches))
    if t.lesson.widths is None:
        may_pack = t.lesson.packs and t.recipe.data.documents != "joined"
        return replace(batch, packed=batch.packed or may_pack), False
    source, target = t.lesson.widths
    rows = len(batch.tokens)
    tokens = torch.zeros(rows, target.most, dtype=torch.int64, device=t.device)
    batch = replace(
        batch,
        tokens=tokens,
        targets=tokens,
        doc=tokens.to(torch.int32),
        at=_places(rows, target, t.device),
        n_targets=tokens.numel(),
        padded=target.padded,
        source=torch.zeros(rows, source.most, dtype=torch.int64, device=t.device),
        source_at=_places(rows, source, t.device) if source.padded else None,
    )
    return batch, not (source.even and target.even)


def _places(rows: int, width: Width, device: torch.device) -> torch.Tensor:
    return torch.arange(width.most, device=device).repeat(rows, 1)


def _asked(t: Trainer, *, micro: int, packed: bool) -> Asked | None:
    """The recipe as the planner is asked for it."""
    precision = str(t.precision).removeprefix("torch.")
    wish = {**wishes(t.recipe.train, t.context, packed=packed), "micro_batches": micro, "precision": precision}
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
