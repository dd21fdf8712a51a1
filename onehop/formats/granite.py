"""Granite 3 as Hugging Face folders: IBM 2024; its multipliers are those of arXiv:2203.03466. No torch."""

import math

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.keys import Json, Key, Keys, number, value_at
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope


def _read_scale(raw: Json) -> Json:
    return {"attention.scale": number("attention_multiplier", raw.get("attention_multiplier", 1.0))}


def _write_scale(config: ModelConfig) -> Json:
    scale = value_at(config, "attention.scale")
    return {"attention_multiplier": value_at(config, "attention.d_head") ** -0.5 if scale is None else scale}


def _read_divisor(raw: Json) -> Json:
    return {"head.scale": 1 / number("logits_scaling", raw.get("logits_scaling", 1.0))}


def _write_divisor(config: ModelConfig) -> Json:
    """The divisor whose inverse is the scale: of neighbouring numbers the one that gives it exactly."""
    scale = config.head.scale
    near = 1 / scale
    candidates = (near, math.nextafter(near, 0), math.nextafter(near, math.inf))
    return {"logits_scaling": next((d for d in candidates if 1 / d == scale), near)}


GRANITE = Family(
    name="granite",
    title="Hugging Face Granite",
    architecture="GraniteForCausalLM",
    structure=kin.STRUCTURE,
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=None),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        *kin.GATED_KEYS,
        Key("mlp_bias", "ffn.bias", default=False),
        kin.rms_eps(),
        kin.tie(default=False),
        Key("embedding_multiplier", "embed.scale", default=1.0),
        Key("residual_multiplier", "residual_scale", default=1.0),
        Keys("attention_multiplier", _read_scale, _write_scale),
        Keys("logits_scaling", _read_divisor, _write_divisor),
        Rope(length=2048),
    ),
    tensors=kin.BODY,
)
