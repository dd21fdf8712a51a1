"""What families with latent attention have in common: rows of keys and of tensors. No torch."""

import math
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.config.attention import LatentConfig
from onehop.config.model import ModelConfig
from onehop.config.position import RopeConfig
from onehop.formats import kin
from onehop.formats.experts import count
from onehop.formats.keys import Harmless, Json, Key, KeyRow, Keys, Only
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move, Row, Site, turned_last

STRUCTURE = {
    "attention.kind": "latent",
    "attention.position.kind": "rope",
    "attention.norm.kind": "rms",
    "attention.norm.eps": 1e-6,  # the norms of the latents do not follow the config's rms_norm_eps
    "norm.kind": "rms",
    "final_norm.kind": "rms",
}
STILL, TURNING = ("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64)


def _widths(raw: Json) -> Json:
    still, turning = (count(raw, key, default, least=1) for key, default in (STILL, TURNING))
    return {"attention.d_head": still + turning, "attention.position.width": turning}


def _says_widths(config: ModelConfig) -> Json:
    a: Any = next(config.layers()).attention
    return {STILL[0]: a.d_head - a.position.width, TURNING[0]: a.position.width}


def _heads(raw: Json) -> Json:
    heads, kv = raw.get("num_attention_heads"), raw.get("num_key_value_heads")
    if kv is not None and kv != heads:
        raise CheckpointError(
            f"config.json: num_key_value_heads={kv!r} cannot be honoured: each of the {heads!r} heads makes its own "
            "keys from the latent. Set it to num_attention_heads."
        )
    return {}


HEADS: tuple[KeyRow, ...] = (
    *(row for row in kin.HEADS if "num_key_value_heads" not in row.names),
    Keys(
        "num_key_value_heads", _heads, lambda config: {"num_key_value_heads": next(config.layers()).attention.n_heads}
    ),
    Keys(f"{STILL[0]} {TURNING[0]} qk_head_dim head_dim", _widths, _says_widths),  # the last two follow from the others
    Key("kv_lora_rank", "attention.d_latent", default=512),
    Key("q_lora_rank", "attention.d_latent_q", default=None, absent=1536),
    Key("v_head_dim", "attention.d_value", default=128),
    Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
)


class LatentRope(Rope):
    """Rotary keys, of which mscale_all_dim also multiplies the scores, by (0.1 · mscale_all_dim · ln(factor) + 1)².

    So in the release of DeepSeek-V2, arXiv:2405.04434.
    """

    def read(self, raw: Json) -> Json:
        paths = super().read(raw)
        scaling = paths["attention.position.scaling"] or {}
        given = (raw.get("rope_parameters") or {}) | (raw.get("rope_scaling") or {})
        mscale, factor = given.get("mscale_all_dim") or 0, scaling.get("factor", 1)
        if not mscale or factor <= 1:
            return paths
        d_head = _widths(raw)["attention.d_head"]
        return {**paths, "attention.scale": d_head**-0.5 * (0.1 * mscale * math.log(factor) + 1) ** 2}


def _attention(site: Site) -> LatentConfig:
    a = site.block.attention
    assert isinstance(a, LatentConfig), "the family's structure says latent"
    return a


def narrow(site: Site) -> bool:
    """Whether queries are made from a latent too."""
    return _attention(site).d_latent_q is not None


def direct(site: Site) -> bool:
    """Whether queries are made from the input."""
    return not narrow(site)


def _turning(site: Site) -> int:
    position = site.block.attention.position
    assert isinstance(position, RopeConfig), "the family's structure says rope"
    return position.width or 0


def _query_heads(site: Site) -> tuple[int, ...]:
    a = _attention(site)
    return (a.n_heads, a.d_head, _turning(site))


def _kept(site: Site) -> tuple[int, ...]:
    return (1, _attention(site).d_latent + _turning(site), _turning(site))


QUERY = turned_last(_query_heads)
KEPT = turned_last(_kept)
_AT, _OURS = "model.layers.{i}.self_attn", "layers.{i}.attention"
ATTENTION: tuple[Row, ...] = (
    Move(f"{_AT}.q_proj.weight", f"{_OURS}.wq.weight", QUERY, when=direct),
    Move(f"{_AT}.q_a_proj.weight", f"{_OURS}.wq_down.weight", when=narrow),
    Move(f"{_AT}.q_a_proj.bias", f"{_OURS}.wq_down.bias", when=lambda site: narrow(site) and kin.biased(site)),
    Move(f"{_AT}.q_a_layernorm.weight", f"{_OURS}.q_norm.weight", when=narrow),
    Move(f"{_AT}.q_b_proj.weight", f"{_OURS}.wq.weight", QUERY, when=narrow),
    Move(f"{_AT}.kv_a_proj_with_mqa.weight", f"{_OURS}.wkv_down.weight", KEPT),
    Move(f"{_AT}.kv_a_proj_with_mqa.bias", f"{_OURS}.wkv_down.bias", KEPT, when=kin.biased),
    Move(f"{_AT}.kv_a_layernorm.weight", f"{_OURS}.kv_norm.weight"),
    Move(f"{_AT}.kv_b_proj.weight", f"{_OURS}.wkv.weight"),
    Move(f"{_AT}.o_proj.weight", f"{_OURS}.wo.weight"),
    Move(f"{_AT}.o_proj.bias", f"{_OURS}.wo.bias", when=kin.biased_out),
)
HARMLESS: tuple[KeyRow, ...] = (
    Harmless("pretraining_tp ep_size", "how many devices shared the work: the result is the same"),
    Harmless("seq_aux", "of a loss in training"),
    Only("moe_layer_freq", (1,), "experts stand in every layer after the first dense ones"),
)
