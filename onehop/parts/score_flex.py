"""FlexAttention: PyTorch's generated kernels, on a GPU, for caps, sinks, windows and documents without T × S memory.

Dong et al. 2024, arXiv:2412.05496. Blocks of queries and keys that nobody may see are skipped; a `Sees` says which.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from onehop.parts.keys import Keys
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sight


def flex(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, compiled: bool = True) -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), for the rules of which `why_not_flex` has nothing to say.

    `compiled=False` runs the same call without generating a kernel, on any device: slow, for tests.
    """
    k, v = keys.dense()
    cap = rule.softcap

    def bend(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)  # type: ignore[operator]

    y, aux = (_compiled(flex_attention) if compiled else flex_attention)(
        q.transpose(1, 2),  # (B, H, T, D)
        k.transpose(1, 2),  # (B, K, S, D)
        v.transpose(1, 2),
        score_mod=None if cap is None else bend,
        block_mask=None if sight.is_everything else _blocks(sight, q, compiled=compiled),
        scale=rule.scale,
        enable_gqa=q.size(2) != k.size(2),
        return_aux=AuxRequest(lse=True),
    )
    if rule.sinks is not None:  # the keys' share of the weight that they now divide with the sink
        y = y * torch.sigmoid(aux.lse - rule.sinks.view(1, -1, 1)).unsqueeze(-1).to(y.dtype)
    return y.transpose(1, 2)  # (B, T, H, Dv)


def why_not_flex(rule: ScoreRule, sight: Sight) -> str | None:
    """What of the rule a generated kernel cannot express; None if it can do all of it."""
    if rule.change is not None:
        return "a score rule of your own is known to the plain kernel only"
    if rule.bias is not None:
        return "a position bias has no generated kernel"
    if rule.drop_key is not None:
        return "a generated kernel has no dropout that can be repeated"
    return None if type(sight) is Sight else "a mask of your own has no generated kernel"


def _blocks(sight: Sight, q: Tensor, *, compiled: bool) -> BlockMask:
    """Which blocks of queries and keys are seen, made once per step and rule."""
    if "blocks" not in sight.kept:
        q_at, k_at, prefix = sight.q.at, sight.k.at, sight.prefix
        q_doc, k_doc = sight.q.doc, sight.k.doc

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            q_row, k_row = (b if x.size(0) > 1 else 0 for x in (q_at, k_at))
            i_doc = None if q_doc is None else q_doc[b, i]
            j_doc = None if k_doc is None else k_doc[b, j]
            at = q_at[q_row, i], k_at[k_row, j]
            return sight.sees.pairs(*at, i_doc=i_doc, j_doc=j_doc, prefix=None if prefix is None else prefix[b])

        make = _compiled(create_block_mask) if compiled else create_block_mask
        sight.kept["blocks"] = make(seen, q.size(0), None, q_at.size(1), k_at.size(1), device=q.device)
    return sight.kept["blocks"]


@lru_cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=False)
