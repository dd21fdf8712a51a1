"""One optimizer step: micro-batches forward and backward, clip once, move the weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.parts.dropout import DropKey
from onehop.parts.moe import MoE
from onehop.training.loss import batch_loss
from onehop.training.schedule import learning_rate


@dataclass(frozen=True, eq=False)
class StepResult:
    """What one step did. `loss`: mean surprise per target (nats) before the weights moved; `step` counts from 1."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    targets: int
    loads: tuple[Tensor | None, ...]  # (E,) tokens per expert and layer


def training_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    *,
    index: int,
    cfg: TrainConfig,
    precision: torch.dtype = torch.float32,
) -> StepResult:
    """Learn from one batch, given as micro-batches; `index` counts from 0.

    The loss is the sum over all targets of the step divided by their number, however they are cut into micro-batches.
    A step whose gradient is not finite changes nothing: no weight, no moment.
    """
    lr = learning_rate(index, cfg)
    for group in optimizer.param_groups:
        group["lr"] = lr
    targets = sum(batch.n_targets for batch in batches)
    surprise, loads = _accumulate(model, batches, targets=targets, index=index, cfg=cfg, precision=precision)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip if cfg.clip is not None else float("inf"))
    if bool(torch.isfinite(norm)):
        optimizer.step()
        balance(model, loads)
    optimizer.zero_grad(set_to_none=True)
    return StepResult(index + 1, surprise / max(targets, 1), lr, float(norm), targets, loads)


def _accumulate(
    model: Transformer, batches: Sequence[Batch], *, targets: int, index: int, cfg: TrainConfig, precision: torch.dtype
) -> tuple[float, tuple[Tensor | None, ...]]:
    """Add up the gradients of all micro-batches -> (summed surprise, tokens per expert and layer)."""
    surprise, loads = 0.0, None
    for part, batch in enumerate(batches):
        device = batch.tokens.device
        drop = DropKey.of(cfg.seed, index, part, device=device) if model.config.dropout.any else None
        with torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32):
            loss = batch_loss(model, batch, drop=drop, kernel=cfg.kernel)
        total = loss.surprise / max(targets, 1)
        if loss.router is not None:
            total = total + loss.router * (batch.n_targets / max(targets, 1))
        total.backward()
        surprise += float(loss.surprise.detach())
        loads = loss.loads if loads is None else tuple(_sum(a, b) for a, b in zip(loads, loss.loads, strict=True))
    return surprise, loads or ()


def balance(model: Transformer, loads: Sequence[Tensor | None]) -> None:
    """Move the routers' biases towards an even load, in layers that balance by bias."""
    for layer, load in zip(model.layers, loads, strict=True):
        if load is not None and isinstance(layer.ffn, MoE):
            layer.ffn.update_bias(load)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b
