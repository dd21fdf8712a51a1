"""Gemma 2 as Hugging Face folders: arXiv:2408.00118. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import gemma, kin
from onehop.formats.by_layer import FULL, SLIDING, each_layer, kind_of, layer_count, listed, window_of, windows
from onehop.formats.keys import ACTIVATIONS, Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Row

STRUCTURE = {**gemma.STRUCTURE, "norm_in": True, "norm_out": "inside"}
GATED_KEYS = (
    Key("intermediate_size", "ffn.d_ff"),
    Key("hidden_activation", "ffn.activation", gemma.TANH, words=ACTIVATIONS),
    Harmless("hidden_act", "hidden_activation is what their own code reads"),
)
LEFTOVERS = (
    Harmless("cache_implementation", "how the past is kept"),
    Harmless("sliding_window_size", "an older name that their own code does not read"),
)
NORMS: tuple[Row, ...] = (
    *kin.block_norm("model.layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
    *kin.block_norm("model.layers.{i}.post_attention_layernorm", "layers.{i}.inside.attention"),
    *kin.block_norm("model.layers.{i}.pre_feedforward_layernorm", "layers.{i}.ffn_norm"),
    *kin.block_norm("model.layers.{i}.post_feedforward_layernorm", "layers.{i}.inside.ffn"),
)
TENSORS = (
    *kin.EMBEDDING,
    *NORMS,
    *kin.ATTENTION,
    *kin.GATED,
    *kin.final_norm(),
    *kin.HEAD,
    *kin.FREQUENCIES,
)


def _every_other(raw: Json) -> Json:
    n = layer_count(raw)
    kinds = [FULL if i % 2 else SLIDING for i in range(n)]
    return windows({"sliding_window": 4096, **raw}, listed(raw, "layer_types", n, (SLIDING, FULL)) or kinds)


def _write(config: ModelConfig) -> Json:
    width = window_of(config) or 4096  # their code wants one, also where no layer uses it
    return {"layer_types": each_layer(config, kind_of), "sliding_window": width}


GEMMA2 = Family(
    name="gemma2",
    title="Hugging Face Gemma 2",
    architecture="Gemma2ForCausalLM",
    structure=STRUCTURE,
    keys=(
        *kin.SHAPE,
        gemma.embed_scale(),
        *kin.heads(n_kv_heads=4, d_head=256),
        gemma.SCALAR,
        gemma.BIASES,
        gemma.ONE_WAY,
        Key("attn_logit_softcapping", "attention.softcap", default=None, absent=50.0),
        Keys("layer_types sliding_window", _every_other, _write),
        *GATED_KEYS,
        *LEFTOVERS,
        kin.rms_eps(),
        kin.tie(default=True),
        Key("final_logit_softcapping", "head.softcap", default=None, absent=30.0),
        Rope(length=8192),
    ),
    tensors=TENSORS,
    limits=kin.whole_heads("Hugging Face Gemma 2"),
)
