"""What the families before Llama have in common: LayerNorm, plain feed-forward, fused projections. No torch."""

import math
from collections.abc import Iterator

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.keys import ACTIVATIONS, Harmless, Json, Key, KeyRow, Keys, number
from onehop.formats.table import SAME, Drop, Move, Op, Row, Site, Twin, always

STRUCTURE = {
    "attention.kind": "grouped",
    "ffn.kind": "plain",
    "norm.kind": "layer",
    "final_norm.kind": "layer",
}
LEARNED = {"attention.position.kind": "none", "embed.position": "learned"}

# The names that GPT-2 brought into use, and those that today's code knows them by as well.
GPT_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
SHORT_NAMES = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}


def inner(key: str | None, width: str) -> Keys:
    """The inner width of the feed-forward layer: null, or without a key of its own, four times the model's."""

    def read(raw: Json) -> Json:
        value = None if key is None else raw.get(key)
        if value is None and isinstance(raw.get(width), int):
            value = 4 * raw[width]
        return {} if value is None else {"ffn.d_ff": value}

    def write(config: ModelConfig) -> Json:
        return {} if key is None else {key: getattr(next(config.layers()).ffn, "d_ff", None)}

    return Keys(key or "n_inner", read, write)


def root_scale(*, default: bool, places: tuple[str, ...]) -> Keys:
    """scale_embedding: tokens times the root of the model's width, or as they are; absent: `default`."""

    def read(raw: Json) -> Json:
        scaled = raw.get("scale_embedding")
        scaled = default if scaled is None else bool(scaled)
        return dict.fromkeys(places, math.sqrt(number("d_model", raw.get("d_model"))) if scaled else 1.0)

    return Keys("scale_embedding", read, lambda config: {"scale_embedding": config.embed.scale != 1.0})


def activation(key: str, default: str) -> Key:
    """The non-linearity of the feed-forward layer."""
    return Key(key, "ffn.activation", default=default, words=ACTIVATIONS)


def eps(key: str, *more: str) -> Key:
    """The eps of every norm."""
    return Key(key, ("norm.eps", "final_norm.eps", *more), default=1e-5)


def gpt_keys(act: str, dropout: float) -> tuple[KeyRow, ...]:
    """The keys that GPT-2's successors took over."""
    return (
        Key("vocab_size", "vocab_size"),
        Key("n_embd", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "attention.n_heads"),
        inner("n_inner", "n_embd"),
        activation("activation_function", act),
        Key("resid_pdrop", "dropout.residual", default=dropout),
        Key("embd_pdrop", "dropout.embed", default=dropout),
        Key("attn_pdrop", "dropout.attention", default=dropout),
        eps("layer_norm_epsilon"),
        Key("initializer_range", "init_std", default=0.02),
        Harmless("n_ctx", "the length again"),
        Harmless(
            "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout "
            "predict_special_tokens _num_labels",
            "for other heads",
        ),
    )


def read_unscaled(raw: Json) -> Json:
    """scale_attn_weights=false: q·k as it is."""
    return {"attention.scale": 1.0} if raw.get("scale_attn_weights") is False else {}


def write_unscaled(config: ModelConfig) -> Json:
    """Whether q·k is divided by the root of the head's width."""
    return {"scale_attn_weights": next(config.layers()).attention.scale != 1.0}


UNSCALED = Keys("scale_attn_weights", read_unscaled, write_unscaled)


def heads_fill(config: ModelConfig) -> Iterator[str]:
    """These families have no key for the width of a head."""
    a = next(config.layers()).attention
    if a.n_heads * a.d_head != config.d_model:
        yield (
            f"attention.d_head={a.d_head} times attention.n_heads={a.n_heads} must be d_model={config.d_model}: this "
            "layout has no key for the width of a head."
        )


def four_times(config: ModelConfig) -> Iterator[str]:
    """What `heads_fill` says, and no key for the inner width either."""
    yield from heads_fill(config)
    d_ff = getattr(next(config.layers()).ffn, "d_ff", None)
    if d_ff != 4 * config.d_model:
        yield f"ffn.d_ff={d_ff} must be 4 · d_model={4 * config.d_model}: this layout has no key for it."


def linear(theirs: str, ours: str, *, bias: kin.Condition = always, op: Op = SAME) -> tuple[Row, ...]:
    """A linear map of each layer and its bias, where it has one; `op` is for the matrix."""
    return (
        Move(f"{theirs}.weight", f"{ours}.weight", op),
        Move(f"{theirs}.bias", f"{ours}.bias", when=bias),
    )


def fused(theirs: str, op: Op, *, bias_op: Op | None = None, when: kin.Condition = always) -> tuple[Row, ...]:
    """Queries, keys and values in one matrix of each layer, and the bias, where it has one."""
    weights, biases = (tuple(f"layers.{{i}}.attention.w{x}.{kind}" for x in "qkv") for kind in ("weight", "bias"))
    return (
        Move(f"{theirs}.weight", weights, op, when=when),
        Move(f"{theirs}.bias", biases, bias_op or op, when=lambda s: when(s) and kin.biased(s)),
    )


def four_maps(attention: str) -> tuple[Row, ...]:
    """Queries, keys, values and output, each with its matrix and the bias that it has; names up to the last dot."""
    pairs = (("q_proj", "wq"), ("k_proj", "wk"), ("v_proj", "wv"), ("out_proj", "wo"))
    return tuple(
        row
        for theirs, ours in pairs
        for row in linear(
            f"{attention}{theirs}",
            f"layers.{{i}}.attention.{ours}",
            bias=kin.biased_out if ours == "wo" else kin.biased,
        )
    )


def qkv_sizes(site: Site) -> tuple[int, ...]:
    """The rows of queries, keys and values."""
    a = site.block.attention
    return (a.n_heads * a.d_head, a.n_kv_heads * a.d_head, a.n_kv_heads * a.d_head)


def biased_ffn(site: Site) -> bool:
    """Whether this layer's feed-forward has biases."""
    return bool(getattr(site.block.ffn, "bias", False))


def mlp(up: str, down: str, op: Op = SAME) -> tuple[Row, ...]:
    """The two maps of a plain feed-forward layer."""
    return (
        *linear(up, "layers.{i}.ffn.w1", bias=biased_ffn, op=op),
        *linear(down, "layers.{i}.ffn.w2", bias=biased_ffn, op=op),
    )


def pre_norms(first: str, second: str) -> tuple[Row, ...]:
    """The norms before attention and before the feed-forward layer (where the two do not share one)."""
    return (
        *kin.block_norm(first, "layers.{i}.attention_norm", when=lambda s: s.block.norm_in),
        *kin.block_norm(second, "layers.{i}.ffn_norm", when=lambda s: s.block.norm_in and not one_norm(s)),
    )


def one_norm(site: Site) -> bool:
    """Whether attention and feed-forward read the same normalised input."""
    return site.block.parallel == "one norm"


def head(of: str, name: str = "lm_head") -> tuple[Row, ...]:
    """The head, or the embedding again."""
    return (
        Move(f"{name}.weight", "head.projection.weight", when=kin.untied),
        Twin(f"{name}.weight", of=of, when=kin.tied),
    )


def masks(attention: str) -> tuple[Row, ...]:
    """Buffers of old files."""
    return (
        Drop(f"{attention}.bias", "the causal mask of old files: it follows from the positions"),
        Drop(f"{attention}.masked_bias", "the number that old files hid scores with"),
    )
