"""What GGUF architectures have in common: rows of metadata keys and of tensors. No torch.

A key stands without the architecture's name before it (`block_count`, not `llama.block_count`). What no key tells is
told by the tensors that a file has: `Present`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.gguf.header import uniform
from onehop.formats.keys import Harmless, Json, Key, KeyRow, Keys, Only, number, value_at
from onehop.formats.layout import Family
from onehop.formats.table import SAME, Drop, Move, Op, Row, Site, always, rows

PLUS_ONE = Op("plus_one")  # weights that this library stores around 0 are stored around 1 there


@dataclass(frozen=True)
class Architecture(Family):
    """A family in the layout of GGUF, whose files say in a key of their own whose they are.

    `older`: rows of old files, each in place of the row that makes the same of our tensors; the name of an old tensor
    of the first layer tells that a file is one.
    """

    older: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    def identity(self) -> Json:
        return {}

    def tensors_of(self, names: Iterable[str]) -> tuple[Row, ...]:
        """The table for a file with these names."""
        names = set(names)
        old = tuple(row for sign, group in self.older.items() if sign in names for row in group)
        made = {row.ours for row in old if isinstance(row, Move)}
        return (*(row for row in self.tensors if not (isinstance(row, Move) and row.ours in made)), *old)


@dataclass(frozen=True)
class Present:
    """A tensor whose presence is a yes or no of the config."""

    theirs: str
    ours: str
    there: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, raw: Json) -> Json:
        return {self.ours: self.there if raw.get(self.theirs) else not self.there}

    def write(self, config: ModelConfig) -> Json:
        return {self.theirs: True} if value_at(config, self.ours) == self.there else {}


def derived(**paths: Any) -> Keys:
    """Places whose value follows from the model's width: `__` stands for a dot, the value for a power of it."""
    values = {path.replace("__", "."): power for path, power in paths.items()}

    def read(raw: Json) -> Json:
        width = number("embedding_length", raw.get("embedding_length"))
        return {path: float(width**power) for path, power in values.items()}

    return Keys("", read)


def _widths(raw: Json) -> Json:
    """The width of a head: of its key, which its value must share."""
    key, value = raw.get("attention.key_length"), raw.get("attention.value_length")
    if key is not None and value is not None and key != value:
        raise CheckpointError(
            f"config.json: attention.value_length={value!r} and attention.key_length={key!r} differ, which cannot be "
            "honoured: keys and values of a head have one width. Use a checkpoint where they are equal."
        )
    found = value if key is None else key
    return {} if found is None else {"attention.d_head": found}


def _write_widths(config: ModelConfig) -> Json:
    width = value_at(config, "attention.d_head")
    return {"attention.key_length": width, "attention.value_length": width}


@dataclass(frozen=True)
class Even:
    """A key that may hold one value or a list with one per layer, which have to be equal."""

    key: Key

    @property
    def names(self) -> tuple[str, ...]:
        return self.key.names

    def read(self, raw: Json) -> Json:
        value = raw.get(self.key.theirs)
        if isinstance(value, list):
            value = uniform(value)
            if isinstance(value, list):
                raise CheckpointError(
                    f"config.json: {self.key.theirs} differs from layer to layer, which cannot be honoured. "
                    "Use a checkpoint whose layers are alike."
                )
        return self.key.read({self.key.theirs: value})

    def write(self, config: ModelConfig) -> Json:
        return self.key.write(config)


SHAPE: tuple[KeyRow, ...] = (
    Key("vocab_size", "vocab_size"),  # the rows of token_embd.weight
    Key("embedding_length", "d_model"),
    Key("block_count", "n_layers"),
    Even(Key("attention.head_count", "attention.n_heads")),
    Even(Key("attention.head_count_kv", "attention.n_kv_heads", default=None)),
    Keys("attention.key_length attention.value_length", _widths, _write_widths),
    Only("attention.causal", (True,), "every token would see the ones after it"),
    Only("pooling_type", (0,), "the model would give vectors and not logits"),
    Only("leading_dense_block_count", (0,), "some layers would have no experts"),
    Harmless("attention.layer_indices tensor_data_layout", "the order in which things lay in the source"),
)
D_FF: tuple[KeyRow, ...] = (Even(Key("feed_forward_length", "ffn.d_ff")),)
NO_EXPERTS: tuple[KeyRow, ...] = (
    Only("expert_count", (0,), "layers would have experts"),
    Only("expert_used_count", (0,), "layers would have experts"),
)
LENGTH = Key("context_length", "max_len")
RMS = Key("attention.layer_norm_rms_epsilon", ("norm.eps", "final_norm.eps"))
LAYER_NORM = Key("attention.layer_norm_epsilon", ("norm.eps", "final_norm.eps"))
QK_RMS = Key("attention.layer_norm_rms_epsilon", ("norm.eps", "final_norm.eps", "attention.qk_norm.norm.eps"))
UNTIED = Present("output.weight", "head.tied", there=False)
BIASES: tuple[KeyRow, ...] = (
    Present("blk.0.attn_q.bias", "attention.bias"),
    Present("blk.0.attn_output.bias", "attention.bias_out"),
)

STRUCTURE: Mapping[str, Any] = {
    "attention.kind": "grouped",
    "attention.position.kind": "rope",
    "ffn.kind": "gated",
    "ffn.activation": "silu",
    "norm.kind": "rms",
    "final_norm.kind": "rms",
}
CLASSIC: Mapping[str, Any] = {
    "attention.kind": "grouped",
    "ffn.kind": "plain",
    "norm.kind": "layer",
    "final_norm.kind": "layer",
}


def query_heads(site: Site) -> int:
    """How many query heads this layer has."""
    return site.block.attention.n_heads


def key_heads(site: Site) -> int:
    """How many key heads it has."""
    return site.block.attention.n_kv_heads


def qkv_sizes(site: Site) -> tuple[int, ...]:
    """The rows of queries, keys and values."""
    a = site.block.attention
    return (a.n_heads * a.d_head, a.n_kv_heads * a.d_head, a.n_kv_heads * a.d_head)


def norm(theirs: str, ours: str, op: Op = SAME, *, when: kin.Condition = always) -> tuple[Row, ...]:
    """A norm of each layer with the weight and the bias that it has; names without the ending."""
    return (
        Move(f"{theirs}.weight", f"{ours}.weight", op, when=lambda s: when(s) and kin.weighted(s.block.norm)),
        Move(f"{theirs}.bias", f"{ours}.bias", when=lambda s: when(s) and kin.shifted(s.block.norm)),
    )


def ends(op: Op = SAME) -> tuple[Row, ...]:
    """The embedding, the last norm and the head."""
    return (
        Move("token_embd.weight", "embed.tokens.weight"),
        Move("output_norm.weight", "final_norm.weight", op, when=lambda s: kin.weighted(s.config.final_norm)),
        Move("output_norm.bias", "final_norm.bias", when=lambda s: kin.shifted(s.config.final_norm)),
        Move("output.weight", "head.projection.weight", when=kin.untied),
    )


def linear(
    theirs: str, ours: str, *, bias: kin.Condition, op: Op = SAME, when: kin.Condition = always
) -> tuple[Row, ...]:
    """A linear map of each layer and its bias, where it has one."""
    theirs, ours = f"blk.{{i}}.{theirs}", f"layers.{{i}}.{ours}"
    return (
        Move(f"{theirs}.weight", f"{ours}.weight", op, when=when),
        Move(f"{theirs}.bias", f"{ours}.bias", op, when=lambda s: when(s) and bias(s)),
    )


def attention(q: Op = SAME, k: Op = SAME) -> tuple[Row, ...]:
    """Queries, keys, values and output, each by itself."""
    return (
        *linear("attn_q", "attention.wq", bias=kin.biased, op=q),
        *linear("attn_k", "attention.wk", bias=kin.biased, op=k),
        *linear("attn_v", "attention.wv", bias=kin.biased),
        *linear("attn_output", "attention.wo", bias=kin.biased_out),
    )


def fused_attention() -> tuple[Row, ...]:
    """Queries, keys and values one below the other, and the output."""
    weights, biases = (tuple(f"layers.{{i}}.attention.w{x}.{kind}" for x in "qkv") for kind in ("weight", "bias"))
    return (
        Move("blk.{i}.attn_qkv.weight", weights, rows(qkv_sizes)),
        Move("blk.{i}.attn_qkv.bias", biases, rows(qkv_sizes), when=kin.biased),
        *linear("attn_output", "attention.wo", bias=kin.biased_out),
    )


GATED: tuple[Row, ...] = (
    *linear("ffn_gate", "ffn.w1", bias=kin.biased_ffn, when=kin.dense),
    *linear("ffn_up", "ffn.w3", bias=kin.biased_ffn, when=kin.dense),
    *linear("ffn_down", "ffn.w2", bias=kin.biased_ffn, when=kin.dense),
)


def _has_bias(site: Site) -> bool:
    return bool(getattr(site.block.ffn, "bias", False))


PLAIN: tuple[Row, ...] = (
    *linear("ffn_up", "ffn.w1", bias=_has_bias),
    *linear("ffn_down", "ffn.w2", bias=_has_bias),
)
PRE_NORMS: tuple[Row, ...] = (
    *norm("blk.{i}.attn_norm", "layers.{i}.attention_norm"),
    *norm("blk.{i}.ffn_norm", "layers.{i}.ffn_norm"),
)


def qk_norms(op: Op = SAME) -> tuple[Row, ...]:
    """Norms on the queries and keys of each head."""
    return (
        Move("blk.{i}.attn_q_norm.weight", "layers.{i}.attention.q_heads.norm.weight", op, when=kin.qk_normed),
        Move("blk.{i}.attn_k_norm.weight", "layers.{i}.attention.k_heads.norm.weight", op, when=kin.qk_normed),
    )


IN_CONFIG: tuple[Row, ...] = tuple(
    Drop(name, "read into the config: what the rotary frequencies are divided by")
    for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
)
