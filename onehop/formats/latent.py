"""What families with latent attention have in common: rows of keys and of tensors. No torch."""

import math
from typing import Any

from onehop.config.attention import LatentConfig
from onehop.config.model import ModelConfig
from onehop.config.position import RopeConfig, YarnScaling
from onehop.formats import kin
from onehop.formats.by_layer import layer_count
from onehop.formats.experts import DENSE, ROUTED, count
from onehop.formats.keys import Json, Key, KeyRow, Keys, value_at
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move, Op, Row, Site

STRUCTURE = {
    "attention.kind": "latent",
    "attention.position.kind": "rope",
    "attention.norm.kind": "rms",
    "attention.norm.eps": 1e-6,  # their class gives the latents' norms no eps of the config
    "norm.kind": "rms",
    "final_norm.kind": "rms",
}


def _widths(raw: Json) -> Json:
    still, turning = (count(raw, key, default, least=1) for key, default in WIDTHS.items())
    return {"attention.d_head": still + turning, "attention.position.width": turning}


def _says_widths(config: ModelConfig) -> Json:
    a: Any = next(config.layers()).attention
    turning = a.position.width
    return dict(zip(WIDTHS, (a.d_head - turning, turning), strict=True))


WIDTHS = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
KEYS: tuple[KeyRow, ...] = (
    Keys(" ".join((*WIDTHS, "qk_head_dim head_dim")), _widths, _says_widths),  # the last two follow from the first two
    Key("kv_lora_rank", "attention.d_latent", default=512),
    Key("q_lora_rank", "attention.d_latent_q", default=None, absent=1536),
    Key("v_head_dim", "attention.d_value", default=128),
    Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
)


class LatentRope(Rope):
    """Rotary keys of which one, mscale_all_dim, also warms the scores: DeepSeek-V2's release, arXiv:2405.04434."""

    def read(self, raw: Json) -> Json:
        paths = super().read(raw)
        scaling = paths["attention.position.scaling"]
        given = (raw.get("rope_parameters") or {}) | (raw.get("rope_scaling") or {})
        warm = _warmth(scaling, given.get("mscale_all_dim"))
        d_head = _widths(raw)["attention.d_head"]
        return paths if warm == 1 else {**paths, "attention.scale": d_head**-0.5 * warm}


def _warmth(scaling: Json | None, mscale: float | None) -> float:
    """What the scores are multiplied by: (0.1 · mscale · ln(factor) + 1)², or 1."""
    if scaling is None or not mscale or scaling.get("factor", 1) <= 1:
        return 1.0
    return (0.1 * mscale * math.log(scaling["factor"]) + 1) ** 2


def first_dense(default: int):  # noqa: ANN201
    """The first layers have no experts."""


def turned_last(n_heads: Any, width: Any) -> Op:
    """Rows of heads whose last dims are rotary pairs (2j, 2j + 1) in their file, and (j, j + half of them) here."""


