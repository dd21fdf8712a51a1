"""Gemma as Hugging Face folders: arXiv:2403.08295; and the rows that its successors took over. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.keys import ACTIVATIONS, Json, Key, Keys, Only, number, value_at
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

TANH = "gelu_pytorch_tanh"
# Weights of norms are stored around 0, and the embedding is multiplied by sqrt(hidden_size).
STRUCTURE = {**kin.STRUCTURE, "norm.offset": 1, "final_norm.offset": 1}
BIASES = Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False)
ONE_WAY = Only("use_bidirectional_attention", (False,), "every token would see the ones after it")


def embed_scale(d_model: int | None = None) -> Keys:
    """The scale that no key tells; `d_model` is what their code takes where hidden_size is absent."""

    def read(raw: Json) -> Json:
        return {"embed.scale": number("hidden_size", raw.get("hidden_size", d_model)) ** 0.5}

    return Keys("", read)


def _read_scalar(raw: Json) -> Json:
    scalar = raw.get("query_pre_attn_scalar")
    return {"attention.scale": number("query_pre_attn_scalar", 256 if scalar is None else scalar) ** -0.5}


def _write_scalar(config: ModelConfig) -> Json:
    """A whole number, as their class demands; the scale of any other does not come back equal, and is refused."""
    scale = value_at(config, "attention.scale")
    return {"query_pre_attn_scalar": value_at(config, "attention.d_head") if scale is None else round(scale**-2)}


SCALAR = Keys("query_pre_attn_scalar", _read_scalar, _write_scalar)

GEMMA = Family(
    name="gemma",
    title="Hugging Face Gemma",
    architecture="GemmaForCausalLM",
    structure=STRUCTURE,
    keys=(
        *kin.SHAPE,
        embed_scale(),
        *kin.heads(n_kv_heads=16, d_head=256),
        BIASES,
        ONE_WAY,
        Key("intermediate_size", "ffn.d_ff"),
        # The first releases say gelu and mean its approximation by tanh.
        Key("hidden_act", "ffn.activation", TANH, words={TANH: "gelu_tanh", **ACTIVATIONS, "gelu": "gelu_tanh"}),
        Only("hidden_activation", (TANH,), "hidden_act is what is read"),
        kin.rms_eps(),
        kin.tie(default=True),
        Rope(length=8192),
    ),
    tensors=kin.BODY,
)
