"""FLOPs of a pass: the products with weights, and, apart from them, attention's with scores and values.

A multiplication and an addition are two. Only matrix products count, as in PyTorch's FLOP counter: norms, softmax,
rotations and activations are a few operations per number. The gradient of a product is two products of its size, so
training takes three times the forward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.ffn import GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import ModelConfig, StackConfig
from onehop.cost.own import UNKNOWN, own_count
from onehop.cost.weights import Weight, by_product

TRAINING = 3  # forward, and the gradients of both factors of each product


@dataclass(frozen=True)
class Pass:
    """One row through the model: `new` tokens after `past` others, `logits` of them asked for.

    Encoder-decoder: `source` tokens, read in this pass or (`read_before`) in an earlier one.
    """

    new: int
    past: int = 0
    logits: int | None = None
    source: int = 0
    read_before: bool = False

    @property
    def keys(self) -> int:
        """Keys that the last token may look at."""
        return self.past + self.new

    @property
    def n_logits(self) -> int:
        """Places whose logits are computed."""
        return self.new if self.logits is None else self.logits


def reading(config: ModelConfig, length: int) -> Pass:
    """How a prompt of `length` tokens is read: by an encoder-decoder as the source, beside one start token."""
    if config.encoder is not None:
        return Pass(1, logits=1, source=length)
    return Pass(length, logits=None if config.both_ways else 1)  # where tokens see each other, each is asked about


def next_token(config: ModelConfig, length: int) -> Pass:
    """The pass that makes a text of `length` tokens whole; an encoder's source has as many."""
    return Pass(1, past=length - 1, source=0 if config.encoder is None else length, read_before=True)


@dataclass(frozen=True)
class Flops:
    """FLOPs of a forward pass of one row.

    `attention` takes every query with every key, as the plain kernel does; `attention_seen` only the pairs that the
    mask lets through, about half of them in a causal model.
    """

    products: float
    attention: float
    attention_seen: float
    missing: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        """All of them, hidden pairs included."""
        return self.products + self.attention

    @property
    def seen(self) -> float:
        """What a kernel that skips hidden pairs computes."""
        return self.products + self.attention_seen


class Product(NamedTuple):
    """A matrix product of one row's pass: how many rows meet `size` numbers of weights, and the map's width.

    That width is w for a map from w to 2 · w: the root of half its size. Of experts each meets its share of the rows.
    """

    rows: float
    size: float
    width: float

    @property
    def flops(self) -> float:
        """A multiplication and an addition of each number for each row."""
        return 2.0 * self.rows * self.size


class Look(NamedTuple):
    """One attention of one row's pass: queries, a head's width, FLOPs over all pairs and over those that are seen."""

    queries: int
    d_head: int
    full: float
    seen: float


def forward(config: ModelConfig, weights: Sequence[Weight], step: Pass) -> Flops:
    """FLOPs of one row's forward pass."""
    missing: list[str] = []
    total = sum(p.flops for p in products(config, weights, step, missing))
    looks_ = list(looks(config, step))
    full, seen = sum(look.full for look in looks_), sum(look.seen for look in looks_)
    return Flops(total, full, seen, list(dict.fromkeys(missing)))


def products(
    config: ModelConfig, weights: Sequence[Weight], step: Pass, missing: list[str] | None = None
) -> Iterator[Product]:
    """The products of one row's forward pass with weights; what parts of one's own leave out goes into `missing`."""
    for maps in by_product(weights):
        if rows := maps[0].share * rows_of(maps[0], step):
            width = math.sqrt(sum(math.prod(w.shape[-2:]) for w in maps) / 2)
            yield Product(rows, sum(w.size for w in maps), width)
    if config.head.tied:
        size = config.need_vocab() * (config.embed.width or config.d_model)
        yield Product(step.n_logits, size, math.sqrt(size / 2))
    stacks: list[tuple[StackConfig, int]] = [(config, step.new)]
    if config.encoder is not None and not step.read_before:
        stacks.append((config.encoder, step.source))
    for stack, rows in stacks:
        yield Product(rows, _own_products(config, stack, [] if missing is None else missing) / 2, config.d_model)


def looks(config: ModelConfig, step: Pass) -> Iterator[Look]:
    """The attentions of one row's forward pass."""
    for block in config.layers():
        a, pairs = block.attention, per_pair(block.attention)
        full, seen = step.new * keys_read(a, step), seen_pairs(a, step.new, step.past)
        yield Look(step.new, a.d_head, pairs * full, pairs * seen)
        if block.cross is not None:
            crossed = per_pair(block.cross) * step.new * step.source
            yield Look(step.new, block.cross.d_head, crossed, crossed)
    if config.encoder is not None and not step.read_before:
        for block in config.encoder.layers():
            a, pairs = block.attention, per_pair(block.attention)
            seen = seen_pairs(a, step.source, 0)
            yield Look(step.source, a.d_head, pairs * step.source**2, pairs * seen)


def rows_of(w: Weight, step: Pass) -> int:
    """How many rows a weight is multiplied with."""
    if w.encoder:
        return step.source if w.rows == "token" and not step.read_before else 0
    by_kind = {
        "none": 0,
        "token": step.new,
        "key": step.keys,
        "logit": step.n_logits,
        "source": 0 if step.read_before else step.source,
    }
    return by_kind[w.rows]


def per_pair(a: AttentionConfig) -> float:
    """FLOPs of one query with one key, over all heads: q·k and weight · v."""
    width = a.d_head + (a.d_value if isinstance(a, LatentConfig) else a.d_head)
    return 2.0 * a.n_heads * width


def keys_read(a: AttentionConfig, step: Pass) -> int:
    """Keys that each query meets: all; when tokens come one by one, no more than a cache keeps of a window."""
    return slots(a, step.keys) if step.new == 1 else step.keys


def slots(a: AttentionConfig, context: int) -> int:
    """Places that a cache keeps for a text: a ring has a window's, and one for what it does not keep."""
    return context if a.window is None else min(context, a.window + 1)


def seen_pairs(a: AttentionConfig, new: int, past: int) -> int:
    """How many pairs of a query and a key the mask lets through (a prefix counts as the past does)."""
    keys = past + new
    if a.sees == "all":
        if a.window is None or a.window >= keys:
            return new * keys
        back = _within(keys, a.window - 1) - _within(past, a.window - 1)  # of each query, keys before it
        return back + _within(new, a.window - 1) + new  # those behind it, and itself
    w = keys if a.window is None else min(a.window, keys)
    rising = max(0, min(keys, w) - past)  # queries that still see their whole past
    return rising * past + rising * (rising + 1) // 2 + (new - rising) * w


def _within(n: int, most: int) -> int:
    """The sum of min(i, most) over i from 0 to n - 1."""
    rising = min(n, most)
    return rising * (rising - 1) // 2 + (n - rising) * most


def _own_products(config: ModelConfig, stack: StackConfig, missing: list[str]) -> float:
    """FLOPs per token of the parts of a user's own in one stack; what they leave out goes into `missing`."""
    total = 0.0
    for what, cfg in own_parts(stack):
        flops = own_count(cfg, "flops", config.d_model)
        if flops is UNKNOWN:
            missing.append(f"{what} {cfg.kind}: its FLOPs")
        total += flops or 0.0
    return total


def own_parts(stack: StackConfig) -> Iterator[tuple[str, AttentionConfig | PlainConfig]]:
    """Each layer's attention and feed-forward that no file of onehop knows."""
    for block in stack.layers():
        if type(block.attention) not in (AttentionConfig, LatentConfig):
            yield "attention", block.attention
        if type(block.ffn) not in (PlainConfig, GatedConfig, MoEConfig):
            yield "ffn", block.ffn  # type: ignore[misc]
