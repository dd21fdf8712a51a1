"""PyTorch's scaled_dot_product_attention, wherever it can express a score rule exactly.

Its kernels follow FlashAttention (Dao et al. 2022, arXiv:2205.14135). A mask or a bias, except for the plain triangle,
has to be laid out for it, (1 | B, 1 | H, T, S); `tiled` needs no such memory. Where training on a CPU is quicker by
products of one's own, they stand in for it: `score_short.py`, `score_half.py`.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from onehop.parts.keys import Keys
from onehop.parts.score_flex import flex, why_not_flex
from onehop.parts.score_half import half, wants_half
from onehop.parts.score_plain import wide
from onehop.parts.score_rule import ScoreRule, learned
from onehop.parts.score_short import short, wants_short
from onehop.parts.sight import Sight


def fused(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight) -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), for the rules of which `why_not_fused` has nothing to say."""
    if q.is_cuda and (_beyond_sdpa(rule) or (lays_out_mask(q, rule, sight) and why_not_flex(rule, sight) is None)):
        return flex(q, keys, rule, sight)
    k, v = keys.dense()  # (B, S, K, D), (B, S, K, Dv)
    triangle = q.size(1) > 1 and rule.bias is None and sight.is_triangle
    mask = None if triangle else _mask(q, rule, sight)
    # PyTorch's triangle is -inf before it is scaled, and would turn to NaN or +inf by a scale that is not above 0
    q, scale = (q, rule.scale) if rule.scale > 0 else (q * rule.scale, 1.0)
    width = v.size(-1)
    if width != q.size(-1):  # the kernels want one width: zeros change neither scores nor the values' own columns
        q, k, v = (_widened(x, max(width, q.size(-1))) for x in (q, k, v))
        return _sdpa(q, k, v, mask, causal=triangle, scale=scale)[..., :width]
    return _sdpa(q, k, v, mask, causal=triangle, scale=scale)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    """The kernel call for q (B, T, H, D), k and v (B, S, K, D), the way that is quickest -> (B, T, H, D)."""
    if wants_short(q, k, v, mask):
        return short(q, k, v, mask, causal=causal, scale=scale)
    if wants_half(q, k, v):
        return half(q, k, v, mask, causal=causal, scale=scale)
    if not causal and (mask is None or q.size(1) == 1):
        return _by_group(q, k, v, mask, scale)
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),  # (B, H, T, D)
        k.transpose(1, 2),  # (B, K, S, D)
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.size(2) != k.size(2),
    )  # (B, H, T, D)
    return y.transpose(1, 2)  # (B, T, H, D)


def why_not_fused(q: Tensor, rule: ScoreRule, sight: Sight) -> str | None:
    """What of the rule PyTorch's kernel cannot express; None if it can do all of it."""
    if rule.is_plain:
        return None
    if rule.change is not None:
        return "a score rule of your own is known to the plain kernel only"
    if q.is_cuda and _beyond_sdpa(rule):
        return why_not_flex(rule, sight)
    if _beyond_sdpa(rule):
        return f"PyTorch's fused kernel has no {'softcap' if rule.softcap is not None else 'sinks'}"
    if rule.bias is not None and q.device.type != "cpu" and wide(q) is not q:
        return "PyTorch's fused kernel rounds a bias to 16 bits there"
    if rule.drop_key is not None:
        return "PyTorch's fused kernel draws its own dropout, which nobody can repeat"
    if learned(rule.bias):
        return "PyTorch's fused kernel gives no gradient to a learned bias"
    return None


def lays_out_mask(q: Tensor, rule: ScoreRule, sight: Sight) -> bool:
    """Whether `fused` has to lay out a mask or bias of T × S for this rule (one row of it for one query is nothing)."""
    if q.size(1) == 1:
        return False
    return rule.bias is not None or not (sight.is_triangle or sight.is_everything)


def _beyond_sdpa(rule: ScoreRule) -> bool:
    """Whether only generated kernels (a GPU) can express the rule."""
    return rule.softcap is not None or rule.sinks is not None


def _mask(q: Tensor, rule: ScoreRule, sight: Sight) -> Tensor | None:
    """What is added to the scores, (1 | B, 1 | H, T, S): booleans, or numbers, in float32 even beside 16-bit q."""
    sees = None if sight.is_everything else sight.mask
    if rule.bias is None:
        return sees
    key = ("bias", rule.bias, wide(q).dtype)
    if key not in sight.kept:
        bias = rule.bias(sight.q.at, sight.k.at).to(wide(q).dtype)
        sight.kept[key] = bias if sees is None else bias.masked_fill(~sees, -math.inf)
    mask: Tensor = sight.kept[key]
    return mask


def _by_group(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """All queries of a group of heads against its keys in one product, each key read once; (B, T, H, D).

    Holds where the queries of a group share their mask rows: no mask at all, or one query, mask (1 | B, 1 | H, 1, S).
    A single row of 16 bits is taken twice on a CPU: PyTorch's kernel is two to four times as quick with two.
    """
    (b, t, h, d), n_kv = q.shape, k.size(2)
    if t == 1:
        q = q.view(b, n_kv, -1, d)  # (B, K, G, D)
    else:
        q = q.view(b, t, n_kv, h // n_kv, d).permute(0, 2, 3, 1, 4).reshape(b, n_kv, -1, d)  # (B, K, G·T, D)
    if mask is not None and mask.size(1) > 1:
        mask = mask.squeeze(2).unflatten(1, (n_kv, -1))  # (1 | B, K, G, S)
    twice = q.size(2) == 1 and q.device.type == "cpu" and q.element_size() == 2
    q = q.expand(-1, -1, 2, -1) if twice else q
    y = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale)
    y = y[:, :, :1] if twice else y
    return y.reshape(b, 1, h, d) if t == 1 else y.reshape(b, h, t, d).transpose(1, 2)  # (B, T, H, D)


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.size(-1) == width else F.pad(x, (0, width - x.size(-1)))
