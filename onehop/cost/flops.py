"""FLOPs of a pass: the products with weights, and, apart from them, attention's with scores and values.

A multiplication and an addition are two. Only matrix products count, as in PyTorch's FLOP counter: norms, softmax,
rotations and activations are a few operations per number. The gradient of a product is two products of its size, so
training takes three times the forward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.ffn import GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import ModelConfig, StackConfig
from onehop.cost.own import UNKNOWN, own_count
from onehop.cost.weights import Weight

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


def forward(config: ModelConfig, weights: Sequence[Weight], step: Pass) -> Flops:
    """FLOPs of one row's forward pass."""
    encodes = config.encoder is not None and not step.read_before
    products = sum(2.0 * w.size * w.share * _rows(w, step, encodes) for w in weights)
    if config.head.tied:
        products += 2.0 * config.need_vocab() * (config.embed.width or config.d_model) * step.n_logits
    missing: list[str] = []
    products += step.new * _own_products(config, config, missing)
    full = seen = 0.0
    for block in config.layers():
        pairs = per_pair(block.attention)
        full += pairs * step.new * keys_read(block.attention, step)
        seen += pairs * seen_pairs(block.attention, step.new, step.past)
        if block.cross is not None:
            full += per_pair(block.cross) * step.new * step.source
            seen += per_pair(block.cross) * step.new * step.source
    if encodes and config.encoder is not None:
        products += step.source * _own_products(config, config.encoder, missing)
        for block in config.encoder.layers():
            full += per_pair(block.attention) * step.source**2
            seen += per_pair(block.attention) * seen_pairs(block.attention, step.source, 0)
    return Flops(products, full, seen, list(dict.fromkeys(missing)))


def _rows(w: Weight, step: Pass, encodes: bool) -> int:
    """How many rows a weight is multiplied with."""
    if w.encoder:
        return step.source if encodes and w.rows == "token" else 0
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
        return sum(min(p, a.window - 1) + min(keys - 1 - p, a.window - 1) + 1 for p in range(past, keys))
    w = keys if a.window is None else min(a.window, keys)
    rising = max(0, min(keys, w) - past)  # queries that still see their whole past
    return rising * past + rising * (rising + 1) // 2 + (new - rising) * w


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
