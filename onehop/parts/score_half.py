"""Training 16-bit attention on a CPU: PyTorch's fused kernel forward, a few dense products for its gradient.

PyTorch's own gradient of that kernel takes up to eight times as long in 16 bits as in float32 there. This one is the
gradient of softmax(Q·Kᵀ)·V (FlashAttention, Dao et al. 2022, arXiv:2205.14135, appendix B.2) as a few products, for a
run of queries at a time: beside inputs and outputs it holds the weights of one run only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.parts.by_hand import by_backward

RUN = 128  # queries at a time; measured with 256 and 1024 tokens
NARROW = 64  # heads below this width are quicker in float32


def half(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """SDPA of 16-bit q (B, T, H, D) with k and v (B, S, K, D) -> (B, T, H, D), to be differentiated on a CPU.

    mask, causal and scale: as SDPA takes them.
    """
    biased = mask is not None and mask.dtype != torch.bool  # a bias has to stay in float32
    if q.size(-1) < NARROW or biased:
        with torch.autocast("cpu", enabled=False):
            return _sdpa(q.float(), k.float(), v.float(), mask, causal=causal, scale=scale).to(q.dtype)
    y: Tensor = _Half.apply(q, k, v, mask, causal, scale)
    return y


def wants_half(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `half` is the quicker way to the gradient of these."""
    return q.device.type == "cpu" and q.dtype in (torch.bfloat16, torch.float16) and by_backward(q, k, v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.size(2) != k.size(2),
    )
    return y.transpose(1, 2)


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.causal, ctx.scale = causal, scale
        return _sdpa(q, k, v, mask, causal=causal, scale=scale)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q, k, v, mask = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            dq, dk, dv = _gradients(q * ctx.scale, k, v, g, mask=mask, causal=ctx.causal)
        return dq.mul_(ctx.scale), dk, dv, None, None, None


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of scaled q, of k and of v, given that of the output, g (B, T, H, D)."""
    (b, t, h, d), (s, n_kv) = q.shape, k.shape[1:3]
    if mask is not None:  # a row that sees nothing is zero, whatever its weights are taken to be
        g = g.masked_fill(~mask.any(dim=-1).transpose(1, 2).unsqueeze(-1), 0.0)
    q, g = _by_group(q, n_kv), _by_group(g, n_kv)  # (B·K, G, T, D)
    k, v = k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1)  # (B·K, S, D)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
    for start in range(0, t, RUN):
        rows = slice(start, min(start + RUN, t))
        n = rows.stop if causal else s  # keys that some query of the run sees
        q_run, g_run = q[:, :, rows].flatten(1, 2), g[:, :, rows].flatten(1, 2)  # (B·K, G·t, D)
        w = torch.bmm(q_run, k[:, :n].mT)  # (B·K, G·t, n)
        _hide(w.view(b, h, -1, n), rows, mask=mask, causal=causal)
        w = torch.softmax(w, dim=-1)
        dw = torch.bmm(g_run, v[:, :n].mT)
        ds = torch._softmax_backward_data(dw, w, -1, w.dtype)
        dq[:, :, rows] = torch.bmm(ds, k[:, :n]).view(b * n_kv, -1, rows.stop - start, d)
        dk[:, :n] += torch.bmm(ds.mT, q_run)
        dv[:, :n] += torch.bmm(w.mT, g_run)
    dq = dq.view(b, h, t, d).transpose(1, 2)  # (B, T, H, D)
    dk, dv = (x.to(q.dtype).view(b, n_kv, s, -1).transpose(1, 2) for x in (dk, dv))  # (B, S, K, D)
    return dq, dk, dv


def _hide(w: Tensor, rows: slice, *, mask: Tensor | None, causal: bool) -> None:
    """Lower the scores (B, H, t, n) of keys that are not seen, in place; not to -inf: empty rows would be NaN."""
    lowest = torch.finfo(w.dtype).min
    if mask is not None:
        w.masked_fill_(~mask[..., rows, :], lowest)
    elif causal:
        t = rows.stop - rows.start
        w[..., rows].masked_fill_(torch.ones(t, t, dtype=torch.bool, device=w.device).triu_(1), lowest)


def _by_group(x: Tensor, n_kv: int) -> Tensor:
    """(B, T, H, D) -> (B·K, G, T, D): the heads that share a key, together."""
    return x.unflatten(2, (n_kv, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1)
