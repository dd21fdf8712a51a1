"""GPT-2, StarCoder 2, GPT-NeoX, Falcon, BLOOM and MPT as GGUF: LayerNorm and plain feed-forward. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats.gguf.rope import Rope
from onehop.formats.gguf.rows import (
    BIASES,
    CLASSIC,
    D_FF,
    IN_CONFIG,
    LAYER_NORM,
    LENGTH,
    NO_EXPERTS,
    PLAIN,
    PRE_NORMS,
    SHAPE,
    UNTIED,
    Architecture,
    attention,
    ends,
    fused_attention,
    norm,
)
from onehop.formats.keys import Json, Key, Keys
from onehop.formats.table import Move, Site

KEYS = (*SHAPE, *D_FF, *NO_EXPERTS, UNTIED)
BIASED = {"attention.bias": True, "attention.bias_out": True, "ffn.bias": True}
BARE = {"attention.bias": False, "attention.bias_out": False, "ffn.bias": False}
ROPED = {"attention.position.kind": "rope"}
ALIBI = {"attention.position.kind": "alibi"}

GPT2 = Architecture(
    name="gpt2",
    title="GGUF of the architecture gpt2",
    architecture="",
    structure={
        **CLASSIC,
        **BIASED,
        "attention.position.kind": "none",
        "embed.position": "learned",
        "ffn.activation": "gelu_tanh",
    },
    keys=(*KEYS, LENGTH, LAYER_NORM),
    tensors=(
        *ends(),
        Move("position_embd.weight", "embed.positions.weight"),
        *PRE_NORMS,
        *fused_attention(),
        *PLAIN,
    ),
)
STARCODER2 = Architecture(
    name="starcoder2",
    title="GGUF of the architecture starcoder2",
    architecture="",
    structure={**CLASSIC, **ROPED, "ffn.activation": "gelu_tanh", "ffn.bias": True},
    keys=(*KEYS, *BIASES, LAYER_NORM, Rope()),
    tensors=(*ends(), *PRE_NORMS, *attention(), *PLAIN, *IN_CONFIG),
)


def _read_residual(raw: Json) -> Json:
    return {"parallel": "two norms" if raw.get("use_parallel_residual", True) else "no"}


def _write_residual(config: ModelConfig) -> Json:
    return {"use_parallel_residual": next(config.layers()).parallel == "two norms"}


GPTNEOX = Architecture(
    name="gptneox",
    title="GGUF of the architecture gptneox",
    architecture="",
    structure={**CLASSIC, **BIASED, **ROPED, "ffn.activation": "gelu", "head.tied": False},
    keys=(
        *KEYS[:-1],
        LAYER_NORM,
        Keys("use_parallel_residual", _read_residual, _write_residual),
        Rope(),
    ),
    tensors=(*ends(), *PRE_NORMS, *fused_attention(), *PLAIN, *IN_CONFIG),
)

SECOND = "blk.0.attn_norm_2.weight"


def _read_norms(raw: Json) -> Json:
    return {"parallel": "two norms" if raw.get(SECOND) else "one norm"}


def _write_norms(config: ModelConfig) -> Json:
    return {SECOND: True} if next(config.layers()).parallel == "two norms" else {}


def _two(site: Site) -> bool:
    return site.block.parallel == "two norms"


def _one(site: Site) -> bool:
    return not _two(site)


FALCON = Architecture(
    name="falcon",
    title="GGUF of the architecture falcon",
    architecture="",
    structure={**CLASSIC, **BARE, **ROPED, "ffn.activation": "gelu"},
    keys=(*KEYS, LAYER_NORM, Keys(SECOND, _read_norms, _write_norms), Rope()),
    tensors=(
        *ends(),
        # With two norms the first is the feed-forward layer's (ln_mlp), the second attention's (ln_attn).
        *norm("blk.{i}.attn_norm", "layers.{i}.attention_norm", when=_one),
        *norm("blk.{i}.attn_norm", "layers.{i}.ffn_norm", when=_two),
        *norm("blk.{i}.attn_norm_2", "layers.{i}.attention_norm", when=_two),
        *fused_attention(),
        *PLAIN,
        *IN_CONFIG,
    ),
)
BLOOM = Architecture(
    name="bloom",
    title="GGUF of the architecture bloom",
    architecture="",
    structure={**CLASSIC, **BIASED, **ALIBI, "embed.norm.kind": "layer", "ffn.activation": "gelu_tanh"},
    keys=(*KEYS, LENGTH, Key("attention.layer_norm_epsilon", ("norm.eps", "final_norm.eps", "embed.norm.eps"))),
    tensors=(
        *ends(),
        Move("token_embd_norm.weight", "embed.norm.weight"),
        Move("token_embd_norm.bias", "embed.norm.bias"),
        *PRE_NORMS,
        *fused_attention(),
        *PLAIN,
    ),
)


def _read_clip(raw: Json) -> Json:
    """0: they are not cut off."""
    return {"attention.clip": raw.get("attention.clamp_kqv") or None}


def _write_clip(config: ModelConfig) -> Json:
    clip = next(config.layers()).attention.clip
    return {} if clip is None else {"attention.clamp_kqv": clip}


MPT = Architecture(
    name="mpt",
    title="GGUF of the architecture mpt",
    architecture="",
    structure={
        **CLASSIC,
        **BARE,
        **ALIBI,
        "norm.bias": False,
        "final_norm.bias": False,
        "ffn.activation": "gelu",
    },
    keys=(
        *KEYS,
        LENGTH,
        LAYER_NORM,
        Key("attention.max_alibi_bias", "attention.position.max_exponent"),
        Keys("attention.clamp_kqv", _read_clip, _write_clip),
    ),
    tensors=(*ends(), *PRE_NORMS, *fused_attention(), *PLAIN),
)
