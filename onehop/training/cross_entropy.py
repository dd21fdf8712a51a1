"""Cross-entropy whose gradient is made of the softmax that gave the loss; `definition` is its plain twin.

-log softmax(x)_t has the gradient softmax(x) - e_t, and (log Σ exp x)² has 2 · log Σ exp x · softmax(x): with the
softmax kept, backward is one pass over the logits without an exponential. PyTorch's takes the exponentials again, and
fills a third tensor of that size.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from onehop.cost.memory import SOFTMAX_IS_KEPT
from onehop.data.pack import NO_TARGET
from onehop.parts.by_hand import by_hand
from onehop.parts.score_plain import wide

SMALL = 1e-30  # a weight above it has all digits in float32


class Surprise(NamedTuple):
    """Sums over the targets: of -log p in nats, and of (log Σ exp logit)² where a z-loss asks for it."""

    nats: Tensor
    z: Tensor | None


def cross_entropy(logits: Tensor, targets: Tensor, *, z: bool = False) -> Surprise:
    """Logits (N, V) and targets (N,), -100 where there is none -> Surprise, in float32 for 16-bit logits."""
    if logits.is_cpu and type(logits) is Tensor and logits.size(-1) >= SOFTMAX_IS_KEPT and by_hand(logits):
        nats, squares = _ByHand.apply(logits, targets, z)
        return Surprise(nats, squares)
    return definition(logits, targets, z=z)


def definition(logits: Tensor, targets: Tensor, *, z: bool = False) -> Surprise:
    """The same as PyTorch's functions say it."""
    x = wide(logits)
    nats = F.cross_entropy(x, targets, ignore_index=NO_TARGET, reduction="sum")
    squares = x.logsumexp(-1).square().masked_fill(targets == NO_TARGET, 0.0).sum() if z else None
    return Surprise(nats, squares)


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, z: bool) -> tuple[Tensor, Tensor | None]:
        counts = targets != NO_TARGET
        places = targets.masked_fill(~counts, 0).unsqueeze(-1)  # (N, 1)
        p = torch.softmax(logits, -1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)  # (N, V)
        at_target = p.gather(-1, places).squeeze(-1)  # (N,)
        nats = -at_target.log()
        log_z = wide(logits.gather(-1, places).squeeze(-1)) + nats  # (N,)
        small = counts & ~(at_target > SMALL)  # too small to be told exactly, or no number
        if small.any():
            x = wide(logits[small])
            log_z[small] = x.logsumexp(-1)
            nats[small] = log_z[small] - x.gather(-1, places[small]).squeeze(-1)
        log_z.masked_fill_(~counts, 0.0)
        ctx.save_for_backward(p, places, counts, log_z if z else None)
        ctx.dtype = logits.dtype
        return nats.masked_fill_(~counts, 0.0).sum(), log_z.square().sum() if z else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_z: Tensor | None) -> tuple[Tensor | None, ...]:
        p, places, counts, log_z = ctx.saved_tensors
        g = g * counts  # (N,)
        of_sum = g if log_z is None or g_z is None else g + 2.0 * g_z * log_z
        grad = p * of_sum.unsqueeze(-1)
        grad.scatter_add_(-1, places, -g.unsqueeze(-1))
        return grad.to(ctx.dtype), None, None
