"""Gemma 1 to 3 as GGUF. No torch.

The weights of norms carry their 1 there. Which layers have a window is no key but the architecture's own rule, and so
is the scale of the scores: 1/sqrt of a head's width, but for the largest model, known by its depth.
"""

from functools import partial

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats.by_layer import FULL, SLIDING, each_layer, kind_of, layer_count, stack, window_of
from onehop.formats.gguf.rope import Rope
from onehop.formats.gguf.rows import (
    D_FF,
    GATED,
    IN_CONFIG,
    NO_EXPERTS,
    PLUS_ONE,
    QK_RMS,
    RMS,
    SHAPE,
    STRUCTURE,
    UNTIED,
    Architecture,
    attention,
    derived,
    ends,
    norm,
    qk_norms,
)
from onehop.formats.keys import Json, Key, Keys, nested, number

AROUND_0 = {**STRUCTURE, "ffn.activation": "gelu_tanh", "norm.offset": 1, "final_norm.offset": 1}
SANDWICH = {**AROUND_0, "norm_in": True, "norm_out": "inside"}
BODY = (*ends(PLUS_ONE), *attention(), *GATED, *IN_CONFIG)
NORMS = (
    *norm("blk.{i}.attn_norm", "layers.{i}.attention_norm", PLUS_ONE),
    *norm("blk.{i}.ffn_norm", "layers.{i}.ffn_norm", PLUS_ONE),
)
POST_NORMS = (
    *norm("blk.{i}.post_attention_norm", "layers.{i}.inside.attention", PLUS_ONE),
    *norm("blk.{i}.post_ffw_norm", "layers.{i}.inside.ffn", PLUS_ONE),
)
WINDOW, PATTERN, LOCAL_BASE = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"
ROPE = Rope()


def _scale(raw: Json, largest: int) -> Json:
    """1/sqrt of the model's width per head in the largest model; else the usual."""
    if raw.get("block_count") != largest:
        return {}
    heads = number("attention.head_count", raw.get("attention.head_count"))
    return {"attention.scale": (number("embedding_length", raw.get("embedding_length")) // heads) ** -0.5}


def _kinds(raw: Json, period: int) -> list[str]:
    """Which layers have windows: all but each `period`-th, or what a list of yes and no says."""
    n, told = layer_count(raw, "block_count"), raw.get(PATTERN, period)
    if isinstance(told, list):
        if len(told) != n:
            raise CheckpointError(f"config.json: {PATTERN} should be a list of {n} values, one for each layer.")
        return [SLIDING if yes else FULL for yes in told]
    period = int(number(PATTERN, told))
    return [FULL if (i + 1) % period == 0 else SLIDING for i in range(n)]


def _blocks(raw: Json, kinds: list[str], window: int, local: Json) -> Json:
    """The two kinds of layer; `local` are the rotary positions of those with a window."""
    far = nested(ROPE.read(raw))
    near = nested(ROPE.read({**raw, **local}))
    position = {kind: {"position": table["attention"]["position"]} for kind, table in ((SLIDING, near), (FULL, far))}
    tables = {
        SLIDING: {"attention": {"window": window, **position[SLIDING]}},
        FULL: {"attention": {"window": None, **position[FULL]}},
    }
    return stack(kinds, tables) | {"max_len": far["max_len"]}


def _read_every_other(raw: Json) -> Json:
    kinds = _kinds(raw, 2)
    local = {"rope.freq_base": raw[LOCAL_BASE]} if LOCAL_BASE in raw else {}
    return _blocks(raw, kinds, raw.get(WINDOW, 4096), local) | _scale(raw, 46)


def _read_five_of_six(raw: Json) -> Json:
    window = raw.get(WINDOW)
    kinds = _kinds(raw, 6) if window else [FULL] * layer_count(raw, "block_count")
    # Layers with a window are not stretched: their base is 10000, whatever the others' scaling.
    local = {"rope.freq_base": raw.get(LOCAL_BASE, 10000.0), "rope.scaling.type": "none"}
    return _blocks(raw, kinds, window or 1, local) | _scale(raw, 62)


def _write_layers(config: ModelConfig, period: int) -> Json:
    """The window, the rotary keys of the layers without one (or of all), and which are which where it is unusual."""
    window, kinds = window_of(config), each_layer(config, kind_of)
    layer = dict(zip(kinds, config.layers(), strict=True))
    # Rows look at the first layer.
    far = layer[FULL] if FULL in layer else layer[SLIDING]
    out = ROPE.write(config.model_copy(update={"pattern": (far.name,)}))
    if SLIDING in layer:
        near = ROPE.write(config.model_copy(update={"pattern": (layer[SLIDING].name,)}))
        out |= {WINDOW: window, LOCAL_BASE: near["rope.freq_base"]}
        if kinds != _kinds({"block_count": len(kinds)}, period):
            out[PATTERN] = [kind == SLIDING for kind in kinds]
    return out


LAYER_KEYS = " ".join((WINDOW, PATTERN, LOCAL_BASE, *ROPE.names))

GEMMA = Architecture(
    name="gemma",
    title="GGUF of the architecture gemma",
    architecture="",
    structure={**AROUND_0, "head.tied": True},
    keys=(*SHAPE, *D_FF, *NO_EXPERTS, derived(embed__scale=0.5), RMS, ROPE),
    tensors=(*BODY, *NORMS),
)
GEMMA2 = Architecture(
    name="gemma2",
    title="GGUF of the architecture gemma2",
    architecture="",
    structure={**SANDWICH, "head.tied": True},
    keys=(
        *SHAPE,
        *D_FF,
        *NO_EXPERTS,
        derived(embed__scale=0.5),
        RMS,
        Key("attn_logit_softcapping", "attention.softcap", default=50.0),
        Key("final_logit_softcapping", "head.softcap", default=30.0),
        Keys(LAYER_KEYS, _read_every_other, partial(_write_layers, period=2)),
    ),
    tensors=(*BODY, *NORMS, *POST_NORMS),
)
GEMMA3 = Architecture(
    name="gemma3",
    title="GGUF of the architecture gemma3",
    architecture="",
    structure={
        **SANDWICH,
        "attention.qk_norm.norm.kind": "rms",
        "attention.qk_norm.norm.offset": 1,
        "attention.qk_norm.span": "head",
    },
    keys=(
        *SHAPE,
        *D_FF,
        *NO_EXPERTS,
        derived(embed__scale=0.5),
        QK_RMS,
        UNTIED,
        Key("final_logit_softcapping", "head.softcap", default=None),
        Keys(LAYER_KEYS, _read_five_of_six, partial(_write_layers, period=6)),
    ),
    tensors=(*BODY, *NORMS, *POST_NORMS, *qk_norms(PLUS_ONE)),
)
