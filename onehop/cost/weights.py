"""Every parameter of a model, from its config alone: its name in the built model, its shape, and what it multiplies.

The rows are those of the built model's `named_parameters`, name by name and shape by shape; a test holds them together
over random configs. What a part of the user's own has is asked of its config (`own.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from onehop.base.errors import ConfigError
from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.ffn import GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import BlockConfig, EmbedConfig, ModelConfig, StackConfig
from onehop.config.norm import LayerNormConfig, NormConfig, RMSNormConfig
from onehop.config.position import AlibiConfig, PositionConfig, RopeConfig, T5Config
from onehop.cost.numbers import MOST
from onehop.cost.own import UNKNOWN, own_count

# What a matrix is multiplied with: each new token, each token of the source (keys and values of cross-attention), each
# key that is read (latent attention makes keys anew), each place whose logits are wanted; `none`: looked up, or added.
Rows = Literal["token", "source", "key", "logit", "none"]

# Maps of one input, and the product that they are together (`parts/linear.py`).
SIDE_BY_SIDE = {"wq": "qkv", "wk": "qkv", "wv": "qkv", "wq_down": "down", "wkv_down": "down", "w1": "up", "w3": "up"}

MOST_LAYERS = 10_000  # about a second of arithmetic; the deepest published models have a thousand
EMBEDDING = ("tokens", "positions", "segments")  # parts with one row for each token id, position or segment


@dataclass(frozen=True)
class Weight:
    """One parameter. `share`: how much of it a token meets (experts); `missing`: what a part of one's own left out."""

    name: str
    shape: tuple[int, ...]
    part: str
    rows: Rows = "none"
    layer: int | None = None
    encoder: bool = False
    share: float = 1.0
    missing: str | None = None

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


def by_product(weights: Sequence[Weight]) -> list[list[Weight]]:
    """The weights, those together that are one product because they stand side by side."""
    found: dict[tuple[str, ...], list[Weight]] = {}
    for w in weights:
        owner, _, name = w.name.removesuffix(".weight").rpartition(".")
        product = name if w.part == "experts" else SIDE_BY_SIDE.get(name, name)
        found.setdefault((owner, product, w.rows), []).append(w)
    return list(found.values())


def weights(config: ModelConfig) -> list[Weight]:
    """All parameters of a model, in no particular order. Raises ConfigError for more than can be listed or counted."""
    for stack, where in ((config, ""), (config.encoder, "encoder.")):
        if stack is not None and stack.n_layers > MOST_LAYERS:
            raise ConfigError(
                f"{where}n_layers={stack.n_layers} is more than a plan lists one by one. Use at most {MOST_LAYERS}."
            )
    vocab = config.need_vocab()
    found = [*_embedding(config, config.embed, vocab), *_stack(config, config), *_head(config, vocab)]
    if config.encoder is not None:
        own = _embedding(config, config.encoder.embed, None if config.encoder.share_embedding else vocab)
        found += [
            replace(weight, name=f"encoder.{weight.name}", encoder=True)
            for weight in (*own, *_stack(config, config.encoder))
        ]
    if sum(weight.size for weight in found) > MOST:
        raise ConfigError(f"the model has more than {MOST} parameters, to which a plan counts. Give it smaller sizes.")
    return found


def _embedding(cfg: ModelConfig, embed: EmbedConfig, vocab: int | None) -> Iterator[Weight]:
    """The tables of an embedding; `vocab` None: the token rows are another's."""
    if vocab is not None:
        yield Weight("embed.tokens.weight", (vocab, embed.width or cfg.d_model), "tokens")
    if embed.width is not None:
        yield Weight("embed.widen.weight", (cfg.d_model, embed.width), "embed maps", "token")
    if embed.position == "learned":
        yield Weight("embed.positions.weight", (embed.position_offset + cfg.max_len, cfg.d_model), "positions")
    if embed.segments is not None:
        yield Weight("embed.segments.weight", (embed.segments, cfg.d_model), "segments")
    yield from _norm("embed.norm", cfg.d_model, embed.norm)


def _head(cfg: ModelConfig, vocab: int) -> Iterator[Weight]:
    head, width = cfg.head, cfg.embed.width or cfg.d_model
    if head.transform is not None:
        yield from _linear("head.transform.map", cfg.d_model, cfg.d_model, bias=True, part="head", rows="logit")
        yield from _norm("head.transform.norm", cfg.d_model, head.transform.norm)
    if cfg.embed.width is not None:
        yield from _linear("head.narrow", cfg.d_model, width, part="head", rows="logit")
    if not head.tied:
        yield Weight("head.projection.weight", (vocab, width), "head", "logit")
    if head.bias:
        yield Weight("head.projection.bias", (vocab,), "head")


def _stack(cfg: ModelConfig, stack: StackConfig) -> Iterator[Weight]:
    """Layers, shared position schemes and final norm."""
    done: dict[str, list[Weight]] = {}
    schemes: dict[Any, list[Weight]] = {}
    for i, block in enumerate(stack.layers()):
        if block.name not in done:
            done[block.name] = list(_block(cfg.d_model, block))
        yield from (replace(w, name=f"layers.{i}.{w.name}", layer=i) for w in done[block.name])
        a = block.attention  # equal schemes of a stack are one module, as `model.build` has it
        key = (a.position, a.d_head, a.n_heads, a.sees == "all", getattr(a.position, "scaled", False) and a.scale)
        if key not in schemes:
            schemes[key] = list(_position(f"schemes.{len(schemes)}", a.position, a))
    for found in schemes.values():
        yield from found
    yield from _norm("final_norm", cfg.d_model, stack.final_norm)


def _block(d: int, block: BlockConfig) -> Iterator[Weight]:
    if block.norm_in:
        yield from _norm("attention_norm", d, block.norm)
        if block.parallel != "one norm":
            yield from _norm("ffn_norm", d, block.norm)
        if block.cross is not None:
            yield from _norm("cross_norm", d, block.norm)
    sublayers = ["attention", "ffn"] if block.cross is None else ["attention", "cross", "ffn"]
    for place in ("inside", "outside"):
        if block.norm_out == place:
            for sublayer in sublayers:
                yield from _norm(f"{place}.{sublayer}", d, block.norm)
    yield from _attention(d, block.attention)
    if block.cross is not None:
        yield from _grouped("cross", d, block.cross, keys="source")
    yield from _ffn(d, block.ffn)


def _attention(d: int, a: AttentionConfig) -> Iterator[Weight]:
    if type(a) is AttentionConfig:
        yield from _grouped("attention", d, a, keys="token")
    elif type(a) is LatentConfig:
        yield from _latent(d, a)
    else:
        yield _own("attention", a, d, part="attention", what="attention")
    if a.score is not None:
        yield _own("attention.change", a.score, a, part="attention", what="score rule")


def _grouped(name: str, d: int, a: AttentionConfig, *, keys: Rows) -> Iterator[Weight]:
    q, kv = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    yield from _linear(f"{name}.wq", d, q, bias=a.bias, part=name)
    yield from _linear(f"{name}.wk", d, kv, bias=a.bias, part=name, rows=keys)
    yield from _linear(f"{name}.wv", d, kv, bias=a.bias, part=name, rows=keys)
    yield from _linear(f"{name}.wo", q, d, bias=a.bias_out, part=name)
    if a.qk_norm is not None:
        for heads, n in (("q_heads", a.n_heads), ("k_heads", a.n_kv_heads)):
            found = _norm(f"{name}.{heads}.norm", n * a.d_head if a.qk_norm.span == "all" else a.d_head, a.qk_norm.norm)
            own = a.qk_norm.own_weights
            yield from (replace(w, shape=(n, *w.shape)) if own else w for w in found)
    if a.sinks:
        yield Weight(f"{name}.sinks", (a.n_heads,), name)


def _latent(d: int, a: LatentConfig) -> Iterator[Weight]:
    turning = turning_width(a)
    if a.d_latent_q is not None:
        yield from _linear("attention.wq_down", d, a.d_latent_q, bias=a.bias, part="attention")
        yield from _norm("attention.q_norm", a.d_latent_q, a.norm)
    yield from _linear("attention.wq", a.d_latent_q or d, a.n_heads * a.d_head, part="attention")
    yield from _linear("attention.wkv_down", d, a.d_latent + turning, bias=a.bias, part="attention")
    yield from _norm("attention.kv_norm", a.d_latent, a.norm)
    made = a.n_kv_heads * (a.d_head - turning + a.d_value)
    yield from _linear("attention.wkv", a.d_latent, made, part="attention", rows="key")
    yield from _linear("attention.wo", a.n_heads * a.d_value, d, bias=a.bias_out, part="attention")
    if a.sinks:
        yield Weight("attention.sinks", (a.n_heads,), "attention")


def turning_width(a: LatentConfig) -> int:
    """Dims of a head that turn, which the keys of all heads share."""
    assert isinstance(a.position, RopeConfig), "a rule of the config"
    return a.position.width or a.d_head


def _ffn(d: int, ffn: Any) -> Iterator[Weight]:
    if type(ffn) is PlainConfig:
        yield from _dense("ffn", d, ffn.d_ff, gated=False, bias=ffn.bias, part="ffn")
    elif type(ffn) is GatedConfig:
        yield from _dense("ffn", d, ffn.d_ff, gated=True, bias=ffn.bias, part="ffn")
    elif type(ffn) is MoEConfig:
        yield from _moe(d, ffn)
    else:
        yield _own("ffn", ffn, d, part="ffn", what="ffn")


def _dense(name: str, d: int, d_ff: int, *, gated: bool, bias: bool, part: str) -> Iterator[Weight]:
    yield from _linear(f"{name}.w1", d, d_ff, bias=bias, part=part)
    if gated:
        yield from _linear(f"{name}.w3", d, d_ff, bias=bias, part=part)
    yield from _linear(f"{name}.w2", d_ff, d, bias=bias, part=part)


def _moe(d: int, ffn: MoEConfig) -> Iterator[Weight]:
    e, f, share = ffn.n_experts, ffn.d_ff, ffn.n_active / ffn.n_experts
    yield Weight("ffn.router.weight", (e, d), "router", "token")
    if ffn.router_bias:
        yield Weight("ffn.router.bias", (e,), "router")
    names = ("1", "3") if ffn.expert == "gated" else ("1",)
    for n in names:
        yield Weight(f"ffn.w{n}", (e, f, d), "experts", "token", share=share)
    yield Weight("ffn.w2", (e, d, f), "experts", "token", share=share)
    if ffn.bias:
        yield from (Weight(f"ffn.b{n}", (e, f), "experts", share=share) for n in names)
        yield Weight("ffn.b2", (e, d), "experts", share=share)
    if ffn.d_ff_shared is not None:
        gated = ffn.expert == "gated"
        yield from _dense("ffn.shared", d, ffn.d_ff_shared, gated=gated, bias=ffn.bias, part="shared expert")
        if ffn.shared_gate:
            yield from _linear("ffn.shared_gate", d, 1, part="shared expert")


def _position(name: str, cfg: PositionConfig, a: AttentionConfig) -> Iterator[Weight]:
    if type(cfg) is T5Config:
        yield Weight(f"{name}.table", (cfg.n_buckets, a.n_heads), "position biases")
    elif type(cfg) not in (PositionConfig, RopeConfig, AlibiConfig):
        yield _own(name, cfg, a, part="position biases", what="position scheme")


def _norm(name: str, width: int, cfg: NormConfig) -> Iterator[Weight]:
    if type(cfg) is RMSNormConfig or type(cfg) is LayerNormConfig:
        if cfg.affine:
            yield Weight(f"{name}.weight", (width,), "norms")
        if isinstance(cfg, LayerNormConfig) and cfg.affine and cfg.bias:
            yield Weight(f"{name}.bias", (width,), "norms")
    elif type(cfg) is not NormConfig:
        yield _own(name, cfg, width, part="norms", what="norm")


def _linear(
    name: str, d_in: int, d_out: int, *, part: str, bias: bool = False, rows: Rows = "token"
) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (d_out, d_in), part, rows)
    if bias:
        yield Weight(f"{name}.bias", (d_out,), part)


def _own(name: str, cfg: Any, given: Any, *, part: str, what: str) -> Weight:
    """All parameters of a part of the user's own, as one row."""
    count = own_count(cfg, "parameters", given)
    missing = f"{what} {cfg.kind}: its parameters" if count is UNKNOWN else None
    return Weight(f"{name}.*", (int(count or 0),), part, missing=missing)
