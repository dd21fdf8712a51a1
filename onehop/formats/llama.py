"""Llama 1 to 3.3 as Hugging Face folders: arXiv:2302.13971, 2307.09288, 2407.21783. No torch."""

from collections.abc import Iterator

from onehop.config.model import ModelConfig
from onehop.formats.keys import ACTIVATIONS, Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Drop, Move, Site, Twin

KEYS = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_hidden_layers", "n_layers"),
    Key("num_attention_heads", "attention.n_heads"),
    Key("num_key_value_heads", "attention.n_kv_heads", default=None),
    Key("head_dim", "attention.d_head", default=None),
    Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
    Key("intermediate_size", "ffn.d_ff"),
    Key("hidden_act", "ffn.activation", default="silu", words=ACTIVATIONS),
    Key("mlp_bias", "ffn.bias", default=False),
    Key("rms_norm_eps", ("norm.eps", "final_norm.eps"), default=1e-6),
    Key("tie_word_embeddings", "head.tied", default=False),
    Key("attention_dropout", "dropout.attention", default=0.0),
    Key("initializer_range", "init_std", default=0.02),
    Rope(length=2048),
    Harmless("pretraining_tp", "how many devices shared a product in training: the product is the same"),
    Only("rope_interleaved", (False,), "rotary pairs are (j, j + width/2) in this layout"),
)


def biased(site: Site) -> bool:
    """Whether this layer's projections have biases."""
    return site.block.attention.bias


def biased_ffn(site: Site) -> bool:
    """Whether this layer's feed-forward maps have biases."""
    return site.block.ffn.bias  # type: ignore[attr-defined]  # the structure says gated


def tied(site: Site) -> bool:
    """Whether the head is the embedding."""
    return site.config.head.tied


def untied(site: Site) -> bool:
    """Whether the head has a matrix of its own."""
    return not site.config.head.tied


TENSORS = (
    Move("model.embed_tokens.weight", "embed.tokens.weight"),
    Move("model.layers.{i}.input_layernorm.weight", "layers.{i}.attention_norm.weight"),
    Move("model.layers.{i}.self_attn.q_proj.weight", "layers.{i}.attention.wq.weight"),
    Move("model.layers.{i}.self_attn.q_proj.bias", "layers.{i}.attention.wq.bias", when=biased),
    Move("model.layers.{i}.self_attn.k_proj.weight", "layers.{i}.attention.wk.weight"),
    Move("model.layers.{i}.self_attn.k_proj.bias", "layers.{i}.attention.wk.bias", when=biased),
    Move("model.layers.{i}.self_attn.v_proj.weight", "layers.{i}.attention.wv.weight"),
    Move("model.layers.{i}.self_attn.v_proj.bias", "layers.{i}.attention.wv.bias", when=biased),
    Move("model.layers.{i}.self_attn.o_proj.weight", "layers.{i}.attention.wo.weight"),
    Move("model.layers.{i}.self_attn.o_proj.bias", "layers.{i}.attention.wo.bias", when=biased),
    Move("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.ffn_norm.weight"),
    Move("model.layers.{i}.mlp.gate_proj.weight", "layers.{i}.ffn.w1.weight"),
    Move("model.layers.{i}.mlp.gate_proj.bias", "layers.{i}.ffn.w1.bias", when=biased_ffn),
    Move("model.layers.{i}.mlp.up_proj.weight", "layers.{i}.ffn.w3.weight"),
    Move("model.layers.{i}.mlp.up_proj.bias", "layers.{i}.ffn.w3.bias", when=biased_ffn),
    Move("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.ffn.w2.weight"),
    Move("model.layers.{i}.mlp.down_proj.bias", "layers.{i}.ffn.w2.bias", when=biased_ffn),
    Move("model.norm.weight", "final_norm.weight"),
    Move("lm_head.weight", "head.projection.weight", when=untied),
    Twin("lm_head.weight", of="model.embed_tokens.weight", when=tied),
    Drop("model.layers.{i}.self_attn.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
    Drop("model.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
)


def limits(config: ModelConfig) -> Iterator[str]:
    """What transformers refuses to open."""
    heads = next(config.layers()).attention.n_heads
    if config.d_model % heads:
        yield f"d_model={config.d_model} must be a multiple of attention.n_heads={heads} in a Hugging Face Llama."


LLAMA = Family(
    name="llama",
    title="Hugging Face Llama",
    architecture="LlamaForCausalLM",
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "ffn.kind": "gated",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=KEYS,
    tensors=TENSORS,
    limits=limits,
)
