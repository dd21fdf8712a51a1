"""What the families that took their names from Llama have in common: rows of keys and of tensors. No torch.

A family is put together from these and its own; a row that does not hold for a config says so by its condition.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onehop.config.attention import AttentionConfig
from onehop.config.ffn import GatedConfig, MoEConfig
from onehop.config.model import ModelConfig
from onehop.config.norm import LayerNormConfig, NormConfig
from onehop.formats.keys import ACTIVATIONS, Json, Key, KeyRow, Keys, value_at
from onehop.formats.table import Drop, Move, Row, Site, Twin

Condition = Callable[[Site], bool]

# The block of Llama: pre-norm with RMSNorm, rotary grouped attention, a gated feed-forward.
STRUCTURE: Mapping[str, Any] = {
    "attention.kind": "grouped",
    "attention.position.kind": "rope",
    "ffn.kind": "gated",
    "norm.kind": "rms",
    "final_norm.kind": "rms",
}
SHAPE: tuple[KeyRow, ...] = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_hidden_layers", "n_layers"),
    Key("initializer_range", "init_std", default=0.02),
)
HEADS: tuple[KeyRow, ...] = (
    Key("num_attention_heads", "attention.n_heads"),
    Key("num_key_value_heads", "attention.n_kv_heads", default=None),
    Key("attention_dropout", "dropout.attention", default=0.0),
)


def heads(n_kv_heads: int | None, d_head: int | None = None) -> tuple[KeyRow, ...]:
    """HEADS and the width of a head, with what a family's own code takes where the last two are absent."""
    kv = HEADS[1] if n_kv_heads is None else Key("num_key_value_heads", "attention.n_kv_heads", None, absent=n_kv_heads)
    return (HEADS[0], kv, HEADS[2], Key("head_dim", "attention.d_head", default=d_head))


GATED_KEYS: tuple[KeyRow, ...] = (
    Key("intermediate_size", "ffn.d_ff"),
    Key("hidden_act", "ffn.activation", default="silu", words=ACTIVATIONS),
)


def rms_eps(default: float = 1e-6, *, qk: bool = False, key: str = "rms_norm_eps") -> Key:
    """The eps of every norm, with `qk` also of those on q and k."""
    more = ("attention.qk_norm.norm.eps",) if qk else ()
    return Key(key, ("norm.eps", "final_norm.eps", *more), default=default)


def qk_norm_of_heads(key: str) -> Keys:
    """Whether q and k go through LayerNorms with weights for each head; `layer_norm_eps` is that of every norm."""

    def read(raw: Json) -> Json:
        eps, qk = raw.get("layer_norm_eps", 1e-5), "attention.qk_norm"
        of_heads = {
            f"{qk}.norm.kind": "layer",
            f"{qk}.norm.bias": False,
            f"{qk}.norm.eps": eps,
            f"{qk}.own_weights": True,
        }
        return {"norm.eps": eps, "final_norm.eps": eps, **(of_heads if raw.get(key) else {})}

    def write(config: ModelConfig) -> Json:
        return {"layer_norm_eps": value_at(config, "norm.eps"), key: value_at(config, "attention.qk_norm") is not None}

    return Keys(f"{key} layer_norm_eps", read, write)


def tie(default: bool) -> Key:
    """Whether the head is the embedding."""
    return Key("tie_word_embeddings", "head.tied", default=default)


def attention_of(site: Site) -> AttentionConfig:
    """This layer's attention."""
    return site.block.attention


def biased(site: Site) -> bool:
    """Whether this layer's q, k and v have biases."""
    return site.block.attention.bias


def biased_out(site: Site) -> bool:
    """Whether this layer's output projection has a bias."""
    return site.block.attention.bias_out


def qk_normed(site: Site) -> bool:
    """Whether q and k are normalised with a weight."""
    qk = site.block.attention.qk_norm
    return qk is not None and getattr(qk.norm, "affine", False)


def dense(site: Site) -> bool:
    """Whether this layer's feed-forward is gated, and not made of experts."""
    return isinstance(site.block.ffn, GatedConfig)


def biased_ffn(site: Site) -> bool:
    """Whether this layer's gated feed-forward has biases."""
    return isinstance(site.block.ffn, GatedConfig) and site.block.ffn.bias


def routed(site: Site) -> bool:
    """Whether this layer has experts."""
    return isinstance(site.block.ffn, MoEConfig)


def tied(site: Site) -> bool:
    """Whether the head is the embedding."""
    return site.config.head.tied


def untied(site: Site) -> bool:
    """Whether the head has a matrix of its own."""
    return not site.config.head.tied


def weighted(norm: NormConfig) -> bool:
    """Whether a norm has a weight."""
    return getattr(norm, "affine", False)


def shifted(norm: NormConfig) -> bool:
    """Whether a norm has a bias."""
    return isinstance(norm, LayerNormConfig) and norm.affine and norm.bias


def block_norm(theirs: str, ours: str, when: Condition = lambda site: True) -> tuple[Row, ...]:
    """A norm of each layer, with the weight and the bias that it has; names without `.weight`."""
    return (
        Move(f"{theirs}.weight", f"{ours}.weight", when=lambda s: when(s) and weighted(s.block.norm)),
        Move(f"{theirs}.bias", f"{ours}.bias", when=lambda s: when(s) and shifted(s.block.norm)),
    )


def final_norm(theirs: str = "model.norm") -> tuple[Row, ...]:
    """The norm after the last layer."""
    return (
        Move(f"{theirs}.weight", "final_norm.weight", when=lambda s: weighted(s.config.final_norm)),
        Move(f"{theirs}.bias", "final_norm.bias", when=lambda s: shifted(s.config.final_norm)),
    )


EMBEDDING: tuple[Row, ...] = (Move("model.embed_tokens.weight", "embed.tokens.weight"),)
PRE_NORMS: tuple[Row, ...] = (
    *block_norm("model.layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
    *block_norm("model.layers.{i}.post_attention_layernorm", "layers.{i}.ffn_norm"),
)
_Q, _K, _V, _O = (f"model.layers.{{i}}.self_attn.{x}_proj" for x in "qkvo")
ATTENTION: tuple[Row, ...] = (
    Move(f"{_Q}.weight", "layers.{i}.attention.wq.weight"),
    Move(f"{_Q}.bias", "layers.{i}.attention.wq.bias", when=biased),
    Move(f"{_K}.weight", "layers.{i}.attention.wk.weight"),
    Move(f"{_K}.bias", "layers.{i}.attention.wk.bias", when=biased),
    Move(f"{_V}.weight", "layers.{i}.attention.wv.weight"),
    Move(f"{_V}.bias", "layers.{i}.attention.wv.bias", when=biased),
    Move(f"{_O}.weight", "layers.{i}.attention.wo.weight"),
    Move(f"{_O}.bias", "layers.{i}.attention.wo.bias", when=biased_out),
)
QK_NORMS: tuple[Row, ...] = (
    Move("model.layers.{i}.self_attn.q_norm.weight", "layers.{i}.attention.q_heads.norm.weight", when=qk_normed),
    Move("model.layers.{i}.self_attn.k_norm.weight", "layers.{i}.attention.k_heads.norm.weight", when=qk_normed),
)
_GATE, _UP, _DOWN = (f"model.layers.{{i}}.mlp.{x}_proj" for x in ("gate", "up", "down"))
GATED: tuple[Row, ...] = (
    Move(f"{_GATE}.weight", "layers.{i}.ffn.w1.weight", when=dense),
    Move(f"{_GATE}.bias", "layers.{i}.ffn.w1.bias", when=biased_ffn),
    Move(f"{_UP}.weight", "layers.{i}.ffn.w3.weight", when=dense),
    Move(f"{_UP}.bias", "layers.{i}.ffn.w3.bias", when=biased_ffn),
    Move(f"{_DOWN}.weight", "layers.{i}.ffn.w2.weight", when=dense),
    Move(f"{_DOWN}.bias", "layers.{i}.ffn.w2.bias", when=biased_ffn),
)
HEAD: tuple[Row, ...] = (
    Move("lm_head.weight", "head.projection.weight", when=untied),
    Twin("lm_head.weight", of="model.embed_tokens.weight", when=tied),
)
FREQUENCIES: tuple[Row, ...] = (
    Drop("model.layers.{i}.self_attn.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
    Drop("model.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
)
BODY: tuple[Row, ...] = (*EMBEDDING, *PRE_NORMS, *ATTENTION, *GATED, *final_norm(), *HEAD, *FREQUENCIES)


def whole_heads(title: str) -> Callable[[ModelConfig], Iterator[str]]:
    """What transformers refuses to open in some families, although their heads have a width of their own."""

    def limits(config: ModelConfig) -> Iterator[str]:
        heads = next(config.layers()).attention.n_heads
        if config.d_model % heads:
            yield f"d_model={config.d_model} must be a multiple of attention.n_heads={heads} in a {title}."

    return limits
