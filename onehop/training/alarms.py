"""What a run watches while it learns: losses that jump, experts that no token visits, batches that break a step."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onehop.base.files import append
from onehop.base.units import counted
from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.training.step import StepResult

MEMORY = 0.98  # of the running mean: about the last 50 steps count
FIRST = 20  # steps before the running mean is one
MOST_KEPT = 50  # batches in skipped.jsonl


class SpikeAlarm:
    """Rings once when losses rise more than `height` standard deviations above the mean of the steps before."""

    def __init__(self, height: float | None):
        self.height = height
        self.n, self.mean, self.variance, self.above = 0, 0.0, 0.0, False
        self.was = 0.0  # the mean that the last loss was compared with

    def rings(self, loss: float) -> bool:
        """Look at the next loss."""
        if self.height is None or not math.isfinite(loss):
            return False
        spread = math.sqrt(self.variance)
        high = self.n >= FIRST and loss > self.mean + self.height * max(spread, 1e-3 * abs(self.mean))
        rings, self.above = high and not self.above, high
        weight = max(1 - MEMORY, 1 / (self.n + 1))
        shift, self.was = loss - self.mean, self.mean
        self.n, self.mean = self.n + 1, self.mean + weight * shift
        self.variance = (1 - weight) * (self.variance + weight * shift * shift)
        return rings

    def about(self) -> list[Any]:
        """What has been seen, as JSON."""
        return [self.n, self.mean, self.variance, self.above]

    def restore(self, about: Sequence[Any]) -> None:
        """Go on from there."""
        self.n, self.mean, self.variance, self.above = about


class IdleExperts:
    """For how many steps each expert had no token; rings once for each that had none for `limit` steps."""

    def __init__(self, limit: int):
        self.limit = limit
        self.idle: list[list[int]] | None = None  # of each layer that has experts

    def rings(self, loads: Sequence[Tensor | None]) -> list[tuple[int, int]]:
        """Look at the next step's tokens per expert -> (layer, expert) of those that are dead from now on."""
        places = [i for i, load in enumerate(loads) if load is not None]
        taken = [load.tolist() for load in loads if load is not None]
        before = self.idle or [[0] * len(load) for load in taken]
        self.idle = [
            [0 if n else idle + 1 for n, idle in zip(load, row, strict=True)]
            for load, row in zip(taken, before, strict=True)
        ]
        return [
            (place, e)
            for place, row in zip(places, self.idle, strict=True)
            for e, n in enumerate(row)
            if n == self.limit
        ]

    def restore(self, idle: list[list[int]] | None, *, limit: int) -> None:
        """Go on from there; `limit` is the one that they were counted for."""
        self.idle = (
            idle if idle is None else [[n if n >= limit else min(n, self.limit - 1) for n in row] for row in idle]
        )


def expert_columns(loads: Sequence[Tensor | None]) -> dict[str, Any]:
    """Each expert's share of its layer's tokens, and the shares' entropy over ln E (1: even), by layer; {} without.

    Entries of layers without experts are left out.
    """
    shares = [load.double() / load.sum().clamp(min=1) for load in loads if load is not None]
    if not shares:
        return {}
    entropy = [float(torch.special.entr(p).sum()) / max(math.log(len(p)), 1e-9) for p in shares]
    return {
        "expert_load": [[round(x, 4) for x in p.tolist()] for p in shares],
        "expert_entropy": [round(x, 4) for x in entropy],
    }


def gradient_norms(model: nn.Module) -> dict[str, float | None]:
    """The gradient's norm in each layer and in what is around them, None where it is no number."""
    squares: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            part = re.sub(r"^((?:.*?\.)?layers\.\d+|[^.]+)\..*", r"\1", name)
            squares.setdefault(part, []).append(parameter.grad.float().square().sum())
    norms = {part: math.sqrt(float(torch.stack(parts).sum())) for part, parts in squares.items()}
    return {part: float(f"{norm:.4g}") if math.isfinite(norm) else None for part, norm in norms.items()}


class Alarms:
    """Hears every step of a run. `columns`: what the last one adds to its line of metrics.jsonl; `lines`: in words."""

    def __init__(self, cfg: TrainConfig):
        self.spike, self.idle = SpikeAlarm(cfg.spike), IdleExperts(cfg.dead_after)
        self.columns: dict[str, Any] = {}
        self.lines: list[str] = []
        self._said_empty = False
        self._norms: dict[str, float | None] = {}

    def look(self, model: Transformer) -> None:
        """Note the gradients of the step that is going on."""
        self._norms = gradient_norms(model)

    def hear(self, result: StepResult) -> None:
        """Look at a step; its alarms are in `columns` and `lines` until the next."""
        self.columns, self.lines = {}, []
        if result.skipped:
            self.columns["skipped"] = True
            self.lines.append(f"step {result.step}: the gradient was not finite; the step is skipped")
        if not result.targets and not self._said_empty:
            self._said_empty = True
            self.lines.append(f"step {result.step}: its rows hold no token to predict, so nothing moves (said once)")
        if self.spike.rings(result.loss):
            self.columns["spike"] = True
            self.lines.append(
                f"step {result.step}: the loss jumped to {result.loss:.3f}, its mean was {self.spike.was:.3f}"
            )
        if dead := self.idle.rings(result.loads):
            self.columns["dead_experts"] = [list(place) for place in dead]
            named = _experts_by_layer(dead)
            self.lines.append(
                f"step {result.step}: no token has come to {named} for {counted(self.idle.limit, 'step')}"
            )

    def more_columns(self, loads: Sequence[Tensor | None]) -> dict[str, Any]:
        """What a line of metrics.jsonl says beside the alarms: the experts' loads, and the gradient by layers."""
        return expert_columns(loads) | ({"grad_norms": self._norms} if self._norms else {})

    def about(self) -> dict[str, Any]:
        """What has been heard, as JSON."""
        return {"spike": self.spike.about(), "idle": self.idle.idle, "dead_after": self.idle.limit}

    def restore(self, about: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.spike.restore(about["spike"])
        self.idle.restore(about["idle"], limit=about.get("dead_after", self.idle.limit))


def _experts_by_layer(dead: Sequence[tuple[int, int]]) -> str:
    """'expert 2 of layer 0 and experts 1, 3 of layer 1'."""
    layers = {layer: [str(e) for at, e in dead if at == layer] for layer, _ in dead}
    return " and ".join(f"expert{'s' * (len(es) > 1)} {', '.join(es)} of layer {i}" for i, es in layers.items())


def note_skipped(file: Path, result: StepResult, batches: Sequence[Batch]) -> None:
    """Add a line to skipped.jsonl: a step's numbers, and its rows' token ids and targets (of pairs the sources too)."""
    if file.exists() and file.read_bytes().count(b"\n") >= MOST_KEPT:
        return
    row: dict[str, Any] = {"step": result.step, "loss": str(result.loss), "grad_norm": str(result.grad_norm)}
    for name in ("source", "tokens", "targets"):
        found = [tensor for batch in batches if (tensor := getattr(batch, name)) is not None]
        if found:
            row[name] = [ids for tensor in found for ids in tensor.tolist()]
    append(file, json.dumps(row) + "\n")
