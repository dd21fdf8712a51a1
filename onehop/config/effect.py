"""Keys that only some choices listen to: given another value than their default where nobody listens, they are refused.

An option that would be ignored looks like one that was tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from onehop.config.attention import AttentionConfig, QKNormConfig
from onehop.config.ffn import GateConfig, MoEConfig
from onehop.config.norm import LayerNormConfig, RMSNormConfig
from onehop.config.part import Part
from onehop.config.position import LongRopeScaling, YarnScaling


@dataclass(frozen=True)
class Listens:
    """`key` of a `part` has an effect only if `when` holds, which `needs` says in words."""

    part: type[Part]
    key: str
    when: Callable[[Any], bool]
    needs: str


def _has_weights_by_head(qk: QKNormConfig) -> bool:
    return qk.span == "head" and isinstance(qk.norm, RMSNormConfig | LayerNormConfig) and qk.norm.affine


def _cuts_normed(attention: AttentionConfig) -> bool:
    return attention.clip is not None and attention.qk_norm is not None


LISTENS: list[Listens] = [
    Listens(AttentionConfig, "clip_after_norm", _cuts_normed, "clip and qk_norm"),
    Listens(MoEConfig, "balance_weight", lambda ffn: ffn.balance == "loss", "balance=loss"),
    Listens(MoEConfig, "balance_rate", lambda ffn: ffn.balance == "bias", "balance=bias"),
    Listens(GateConfig, "swish_gain", lambda ffn: ffn.activation == "silu", "activation=silu"),
    Listens(MoEConfig, "clamp", lambda ffn: ffn.expert == "gated", "expert=gated"),
    Listens(MoEConfig, "up_offset", lambda ffn: ffn.expert == "gated", "expert=gated"),
    Listens(MoEConfig, "group_score", lambda ffn: ffn.n_groups > 1, "n_groups above 1"),
    Listens(MoEConfig, "shared_gate", lambda ffn: ffn.d_ff_shared is not None, "d_ff_shared"),
    Listens(RMSNormConfig, "offset", lambda norm: norm.affine, "affine=true"),
    Listens(LayerNormConfig, "offset", lambda norm: norm.affine, "affine=true"),
    Listens(LayerNormConfig, "bias", lambda norm: norm.affine, "affine=true"),
    Listens(QKNormConfig, "own_weights", _has_weights_by_head, "span=head and affine rms or layer"),
    Listens(YarnScaling, "mscale", lambda scaling: scaling.attention_factor is None, "no attention_factor"),
    Listens(YarnScaling, "mscale_all_dim", lambda scaling: scaling.attention_factor is None, "no attention_factor"),
    Listens(LongRopeScaling, "factor", lambda scaling: scaling.attention_factor is None, "no attention_factor"),
]


def without_effect(config: Part, path: str = "", rows: list[Listens] = LISTENS) -> Iterator[str]:
    """A line for each key at or below `config` that has another value than its default, and no effect.

    Blocks are asked one by one (`rules.py`).
    """
    for row in rows:
        if isinstance(config, row.part) and not row.when(config):
            value, default = getattr(config, row.key), row.part.model_fields[row.key].default
            if value != default:
                back = "Leave it out" if default is None else f"Leave it out (or {row.key}={default})"
                yield f"{path}{row.key}={value} has no effect: it needs {row.needs}. {back}."
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Part):
            yield from without_effect(value, f"{path}{name}.", rows)
