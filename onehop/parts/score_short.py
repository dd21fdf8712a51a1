"""Training attention over short texts on a CPU: the definition as a few dense products, whose weights backward reads.

softmax(Q·Kᵀ/√d)·V (Vaswani et al. 2017, arXiv:1706.03762, equation 1) and its gradient. PyTorch's fused kernel takes
one head after the other, tile by tile, and makes the weights anew for the gradient; that saves memory, which few scores
do not need. Products over all heads at once pay where there is enough to multiply: of its CPU time (one thread of an
EPYC, causal, float32) they took 0.74 to 1.02 at 64 to 128 tokens from WORK on, 0.88 to 1.12 at 16 to 48, and with less
than half of WORK 0.94 to 2.5; of that of `half`, in bfloat16 with heads 64 and 128 wide, 0.12 to 0.81 with any.
"""

from typing import Any

import torch
from torch import Tensor

from onehop.parts.by_hand import by_backward
from onehop.parts.score_half import NARROW
from onehop.parts.score_plain import folded, unfolded

SHORT = 128 * 128  # scores of one head up to which this is the quicker way; measured with heads of 32 and 64
WORK = 2**23  # multiplications of Q·Kᵀ, B·H·T·S·D, from which it is, in float32


def short(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """SDPA of q (B, T, H, D) with k and v (B, S, K, D) -> (B, T, H, D) in v's dtype, computed in float32.

    mask: (1 | B, 1 | H, T, S) bool, True where a key is seen; a row that sees nothing gives zeros.
    """
    y: Tensor = _Short.apply(q, k, v, mask, causal, scale)[0]
    return y


def wants_short(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether `short` is the quicker way to these and their gradient."""
    (b, t, h, d), s = q.shape, k.size(1)
    if not q.is_cpu or q.dtype == torch.float64 or not 0 < t * s <= SHORT or not q.numel():
        return False
    if (q.dtype == torch.float32 or d < NARROW) and b * h * t * s * d < WORK:  # `half` is slower however little it is
        return False
    return (mask is None or mask.dtype == torch.bool) and by_backward(q, k, v)


class _Short(torch.autograd.Function):
    """Gives, beside the output, all that its gradient is made of: a second derivative then knows where that is from."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, ...]:
        (b, t, h, _), n_kv = q.shape, k.size(2)
        with torch.autocast("cpu", enabled=False):
            heads = tuple(folded(x, n_kv, torch.float32) for x in (q, k, v))  # (B·K, G·T, D), (B·K, S, D) twice
            w = _weights(heads[0], heads[1], (b, h, t), mask=mask, causal=causal, scale=scale)  # (B·K, G·T, S)
            y = torch.bmm(w, heads[2])
        ctx.save_for_backward(*heads, w)
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.shapes, ctx.dtype = scale, (q.shape, k.shape, v.shape), v.dtype
        return unfolded(y, q.shape).to(v.dtype), w, *heads

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, dw: Tensor | None, *more: Tensor | None) -> tuple[Tensor | None, ...]:
        """g: the gradient of the output; all others are there for a second derivative only."""
        q, k, v, w = ctx.saved_tensors
        if torch.compiler.is_compiling():  # a graph has no second derivative, and is given zeros
            dw, more = None, (None, None, None)
        with torch.autocast("cpu", enabled=False):
            if g is None:
                dy = q.new_zeros(*q.shape[:2], v.size(-1))  # (B·K, G·T, Dv)
            else:
                dy = folded(g, ctx.shapes[1][2], torch.float32)
            ds = torch.bmm(dy, v.mT)  # (B·K, G·T, S), in turn the weights' gradient and the scores'
            ds = _scores_gradient(ds if dw is None else ds + dw, w)
            wanted = ctx.needs_input_grad
            dq = torch.baddbmm(q, ds, k, beta=0, alpha=ctx.scale) if wanted[0] else None
            dq = _as_given(dq, more[0], ctx.shapes[0], ctx.dtype)  # one after the other: wide ones go at once
            dk = torch.baddbmm(k, ds.mT, q, beta=0, alpha=ctx.scale) if wanted[1] else None
            dk = _as_given(dk, more[1], ctx.shapes[1], ctx.dtype)
            dv = torch.bmm(w.mT, dy) if wanted[2] else None
            dv = _as_given(dv, more[2], ctx.shapes[2], ctx.dtype)
        return dq, dk, dv, None, None, None


def _as_given(x: Tensor | None, also: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """A gradient (B·K, G·T, D), and what a second derivative adds to it, as the input came: (B, T, H, D)."""
    if x is None:
        return None
    return unfolded(x if also is None else x + also, shape).to(dtype)


def _scores_gradient(dw: Tensor, w: Tensor) -> Tensor:
    """That of scores, given their softmax and its gradient, whose memory it takes unless it has a gradient itself."""
    if torch.is_grad_enabled():
        return torch._softmax_backward_data(dw, w, -1, dw.dtype)
    return torch._softmax_backward_data(dw, w, -1, dw.dtype, grad_input=dw)


def _weights(
    q: Tensor, k: Tensor, rows: tuple[int, int, int], *, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The softmax of scaled q (B·K, G·T, D) · k (B·K, S, D) -> (B·K, G·T, S); zeros in a row that sees nothing."""
    (b, h, t), s = rows, k.size(1)
    group = q.size(1) // t
    if causal:
        unseen = torch.full((t, s), -torch.inf, device=q.device).triu_(1)
        return torch.softmax(torch.baddbmm(unseen.repeat(group, 1), q, k.mT, alpha=scale), dim=-1)
    if mask is None:
        return torch.softmax(torch.baddbmm(q[:, :, :1], q, k.mT, beta=0, alpha=scale), dim=-1)
    w = torch.softmax(torch.baddbmm(_unseen(mask, rows, group), q, k.mT, alpha=scale), dim=-1)
    w.view(b, h, t, s).masked_fill_(~mask, 0.0)  # a row that sees nothing is NaN until here
    return w


def _unseen(mask: Tensor, rows: tuple[int, int, int], group: int) -> Tensor:
    """0 where a mask (1 | B, 1 | H, T, S) lets see, else -inf -> (1 | B·K, G·T, S).

    The product is added to it: to fill in the scores behind it would change what selective recomputation keeps.
    """
    (b, h, t), s = rows, mask.size(-1)
    unseen = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
    if mask.size(0) == mask.size(1) == 1:
        return unseen.view(1, t, s).repeat(1, group, 1)
    return unseen.expand(b, h, t, s).reshape(b * h // group, group * t, s)
