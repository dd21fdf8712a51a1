"""One optimizer step: micro-batches forward and backward, clip once, move the weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.parts.dropout import DropKey
from onehop.parts.moe import MoE
from onehop.training.compiled import LossOf
from onehop.training.loss import batch_loss
from onehop.training.optimizer import Optimizers
from onehop.training.schedule import learning_rate
from onehop.training.setup import computing


@dataclass(frozen=True, eq=False)
class StepResult:
    """What one step did. `loss`: mean surprise per target (nats) before the weights moved, NaN without targets.

    `step` counts from 1. skipped: the loss or a gradient was infinite or not a number, and nothing moved.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    targets: int
    loads: tuple[Tensor | None, ...]  # (E,) tokens per expert and layer
    skipped: bool
    router_entropy: float | None = None  # mean over tokens and layers, nats; None without experts


def training_step(
    model: Transformer,
    optimizer: Optimizers,
    batches: Sequence[Batch],
    *,
    index: int,
    cfg: TrainConfig,
    precision: torch.dtype = torch.float32,
    n_skipped: int = 0,
    loss_of: LossOf = batch_loss,
    scaler: torch.amp.GradScaler | None = None,
    look: Callable[[Transformer], None] | None = None,
) -> StepResult:
    """Learn from one batch, given as micro-batches; `index` counts from 0, n_skipped of the steps before were skipped.

    The loss is the sum over all targets of the step divided by their number, however they are cut into micro-batches.
    A step whose gradient is not finite changes nothing: no weight, no moment, no place in the learning rate's schedule.
    Nor does one without targets move anything: there AdamW would go on by its moments, and decay.
    loss_of: `batch_loss`, or what stands for it (`compiled.py`). scaler: multiplies the loss, so that small float16
    gradients are no zeros, and divides before anything looks at them. look: sees the gradients before they are clipped.
    """
    lr = learning_rate(index - n_skipped, cfg)
    _set_rate(optimizer, lr)
    targets = sum(batch.n_targets for batch in batches)
    given: dict[str, Any] = {"targets": targets, "index": index, "cfg": cfg, "precision": precision}
    sums = _accumulate(model, batches, scaler=scaler, loss_of=loss_of, **given)
    if scaler is not None:
        scaler.unscale_(cast(torch.optim.Optimizer, optimizer))  # it needs no more than its param_groups
    if look is not None:
        look(model)
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip or math.inf))
    finite = math.isfinite(norm) and math.isfinite(sums.surprise)
    if targets and finite:
        optimizer.step()
        balance(model, sums.loads)
    if scaler is not None:
        scaler.update()
    optimizer.zero_grad(set_to_none=True)
    loss = sums.surprise / targets if targets else math.nan
    return StepResult(index + 1, loss, lr, norm, targets, sums.loads, not finite, sums.entropy)


def _set_rate(optimizer: Optimizers, lr: float) -> None:
    """Learn at `lr`, times each group's own share."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_share", 1.0)


class Sums(NamedTuple):
    """What the micro-batches of a step come to: summed surprise, tokens per expert and layer, mean router entropy."""

    surprise: float
    loads: tuple[Tensor | None, ...]
    entropy: float | None


def _accumulate(
    model: Transformer,
    batches: Sequence[Batch],
    *,
    targets: int,
    index: int,
    cfg: TrainConfig,
    precision: torch.dtype,
    loss_of: LossOf,
    scaler: torch.amp.GradScaler | None,
) -> Sums:
    """Add up the gradients of all micro-batches."""
    surprises: list[Tensor] = []
    entropies: list[Tensor] = []
    loads: tuple[Tensor | None, ...] = ()
    for part, batch in enumerate(batches):
        device = batch.tokens.device
        drop = DropKey.of(cfg.seed, index, part, device=device) if model.config.dropout.any else None
        with computing(device, precision):
            loss = loss_of(model, batch, drop=drop, kernel=cfg.kernel, chunk=cfg.loss_chunk, z=cfg.z_loss > 0)
        total = loss.surprise / max(targets, 1)
        if loss.z is not None:
            total = total + loss.z * (cfg.z_loss / max(targets, 1))
        if loss.router is not None:
            total = total + loss.router * (batch.n_targets / max(targets, 1))
        (total if scaler is None else scaler.scale(total)).backward()
        surprises.append(loss.surprise.detach())
        entropies += [] if loss.entropy is None else [loss.entropy]
        loads = tuple(map(_sum, loads, loss.loads)) if loads else loss.loads
    entropy = float(torch.stack(entropies).mean()) if entropies else None
    return Sums(sum(torch.stack(surprises).tolist()), loads, entropy)


def balance(model: Transformer, loads: Sequence[Tensor | None]) -> None:
    """Move the routers' biases towards an even load, in layers that balance by bias and are not frozen."""
    layers = [*model.layers, *(() if model.encoder is None else model.encoder.layers)]
    for layer, load in zip(layers, loads, strict=True):
        if load is not None and isinstance(layer.ffn, MoE) and layer.ffn.router.weight.requires_grad:
            layer.ffn.update_bias(load)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b
