"""Scaled dot-product attention as it is defined: softmax(Q·Kᵀ/√d)·V, in the order in which the words are read.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1; groups of heads: Ainslie et al. 2023, arXiv:2305.13245; sinks: a
score that takes weight and has no value. Every other kernel is held to this one by tests. T × S weights are in memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from onehop.parts.dropout import keep
from onehop.parts.keys import Keys
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sight


def plain(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight) -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv). A query that sees nothing gets zeros and a zero gradient."""
    _, v = keys.dense()  # (B, S, K, Dv)
    w = weights(q, keys, rule, sight).to(v.dtype)  # (B, H, T, S)
    b, h, t, s = w.shape
    n_kv = v.size(2)
    y = torch.bmm(w.view(b * n_kv, h // n_kv * t, s), stacked(v))  # (B·K, G·T, Dv)
    return unfolded(y, q.shape)  # (B, T, H, Dv)


def weights(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight) -> Tensor:
    """How much each query looks at each key, (B, H, T, S), after dropout; rows sum to 1 less what the sinks take.

    float32 for 16-bit inputs: scores leave the product in the inputs' type, everything after it is float32.
    """
    k, _ = keys.dense()  # (B, S, K, D)
    (b, t, h, _), (s, n_kv) = q.shape, k.shape[1:3]
    scores = torch.bmm(folded(q * rule.scale, n_kv), stacked(k).mT)  # (B·K, G·T, S)
    scores = wide(scores).view(b, h, t, s)  # (B, H, T, S)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.bias is not None:
        scores = scores + rule.bias(sight.q.at, sight.k.at)
    if rule.change is not None:
        scores = rule.change(scores, sight.q.at, sight.k.at)
    mask = None if sight.is_everything else sight.mask
    if rule.bias is not None or rule.change is not None:  # -inf hides as a mask does
        mask = scores != -torch.inf if mask is None else mask & (scores != -torch.inf)
    w = _softmax(scores, mask, rule.sinks)
    if rule.drop_key is not None:
        w = w * kept(rule, w.shape, slice(0, t), slice(0, s)) / (1.0 - rule.dropout)
    return w


def _softmax(scores: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Weights over the last dim of (B, H, T, S), beside one score per head that is left out of the result."""
    if mask is not None:  # the lowest number and not -inf: a row without keys has to stay finite, also in its gradient
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if sinks is not None:
        b, h, t, _ = scores.shape
        beside = sinks.to(scores.dtype).view(1, h, 1, 1).expand(b, h, t, 1)
        scores = torch.cat([scores, beside], dim=-1)  # (B, H, T, S + 1)
    w = torch.softmax(scores, dim=-1)
    w = w if sinks is None else w[..., :-1]  # (B, H, T, S)
    return w if mask is None else w.masked_fill(~mask, 0.0)  # all zeros in a row without keys


def kept(rule: ScoreRule, shape: Sequence[int], rows: slice, cols: slice) -> Tensor:
    """Which weights stay, for some queries and some keys: bool of shape (B, H, t, s)."""
    assert rule.drop_key is not None
    device = rule.drop_key.value.device
    return keep(
        rule.drop_key,
        rule.dropout,
        torch.arange(shape[0], device=device).view(-1, 1, 1, 1),
        torch.arange(shape[1], device=device).view(-1, 1, 1),
        torch.arange(rows.start, rows.stop, device=device).view(-1, 1),
        torch.arange(cols.start, cols.stop, device=device),
    )


def wide(x: Tensor) -> Tensor:
    """Convert x to the type in which scores and sums are kept: float32 for 16-bit types, else its own."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# Consecutive query heads share a kv head, so the G queries of a group are laid end to end and meet their keys in one
# product: no key or value is repeated per query head.


def folded(q: Tensor, n_kv: int, dtype: torch.dtype | None = None) -> Tensor:
    """(B, T, H, D) -> (B·K, G·T, D): the heads of a group, one after the other; in another dtype by the same copy."""
    b, t, h, d = q.shape
    groups = q.view(b, t, n_kv, h // n_kv, d).permute(0, 2, 3, 1, 4)  # (B, K, G, T, D)
    if dtype is not None:
        groups = groups.to(dtype, memory_format=torch.contiguous_format)
    return groups.reshape(b * n_kv, h // n_kv * t, d)


def unfolded(y: Tensor, shape: torch.Size) -> Tensor:
    """(B·K, G·T, Dv) -> (B, T, H, Dv), undoing `folded` of a tensor of `shape`, (B, T, H, D)."""
    b, t, h, _ = shape
    return y.view(b, h, t, y.size(-1)).transpose(1, 2)


def stacked(x: Tensor) -> Tensor:
    """(B, S, K, D) -> (B·K, S, D): a view if B = 1 or memory lies as (B, K, S, D), else one copy."""
    return x.transpose(1, 2).flatten(0, 1)
