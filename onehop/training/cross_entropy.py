"""Cross-entropy whose gradient is made of the softmax that gave the loss; `definition` is its plain twin.

-log softmax(x)_t has the gradient softmax(x) - e_t, and (log Σ exp x)² has 2 · log Σ exp x · softmax(x): with the
softmax kept, backward is one pass over the logits without an exponential. PyTorch's takes the exponentials again, and
fills a third tensor of that size.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.cost.memory import SOFTMAX_IS_KEPT
from onehop.data.pack import NO_TARGET
from onehop.parts.by_hand import ORDINARY, by_hand
from onehop.parts.score_plain import wide

SMALL = 1e-30  # a weight above it has all digits in float32


class Surprise(NamedTuple):
    """Sums over the targets: of -log p in nats, and of (log Σ exp logit)² where a z-loss asks for it."""

    nats: Tensor
    z: Tensor | None


def cross_entropy(logits: Tensor, targets: Tensor, *, z: bool = False) -> Surprise:
    """Logits (N, V) and targets (N,), -100 where there is none -> Surprise, in float32 for 16-bit logits."""
    if logits.is_cpu and type(logits) in ORDINARY and logits.size(-1) >= SOFTMAX_IS_KEPT and by_hand(logits):
        nats, squares, _, _ = _ByHand.apply(logits, targets, z)
        return Surprise(nats, squares)
    return definition(logits, targets, z=z)


def definition(logits: Tensor, targets: Tensor, *, z: bool = False) -> Surprise:
    """The same as PyTorch's functions say it."""
    x = wide(logits)
    nats = F.cross_entropy(x, targets, ignore_index=NO_TARGET, reduction="sum")
    squares = x.logsumexp(-1).square().masked_fill(targets == NO_TARGET, 0.0).sum() if z else None
    return Surprise(nats, squares)


class _ByHand(torch.autograd.Function):
    """The sums; and what their gradient is made of, as outputs: a second derivative knows where those come from."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, z: bool) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        counts = targets != NO_TARGET
        places = targets.masked_fill(~counts, 0).unsqueeze(-1)  # (N, 1)
        p = torch.softmax(logits, -1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)  # (N, V)
        at_target = p.gather(-1, places).squeeze(-1)  # (N,)
        nats = -at_target.log()
        log_z = wide(logits.gather(-1, places).squeeze(-1)) + nats  # (N,)
        small = counts & (at_target <= SMALL)  # too small to be told exactly
        if small.any():
            x = wide(logits[small])
            log_z[small] = x.logsumexp(-1)
            nats[small] = log_z[small] - x.gather(-1, places[small]).squeeze(-1)
        log_z.masked_fill_(~counts, 0.0)
        ctx.save_for_backward(p, log_z, places, counts)
        ctx.dtype = logits.dtype
        return nats.masked_fill_(~counts, 0.0).sum(), log_z.square().sum() if z else None, p, log_z

    @staticmethod
    def backward(
        ctx: Any, g: Tensor | None, g_z: Tensor | None, g_p: Tensor | None, g_log: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The last two only where the gradient itself was differentiated."""
        p, log_z, places, counts = ctx.saved_tensors
        zero = torch.zeros((), dtype=p.dtype, device=p.device)
        of_nats = counts * (zero if g is None else g)  # (N,)
        of_log = of_nats if g_z is None else of_nats + 2.0 * g_z * log_z
        if g_log is not None:
            of_log = of_log + counts * g_log
        grad = p * of_log.unsqueeze(-1)
        grad.scatter_add_(-1, places, -of_nats.unsqueeze(-1))
        if g_p is not None:
            grad = grad + p * (g_p - (g_p * p).sum(-1, keepdim=True))
        return grad.to(ctx.dtype), None, None
