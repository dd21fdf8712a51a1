"""FLOPs of a training step in which not every weight learns: what is frozen has no gradient, adapters have theirs.

Of each product backward makes the gradient of its weights where they learn, and that of its input where anything that
learns lies before it. Where all learns both come to twice the forward pass. Adapters: Hu et al. 2021, arXiv:2106.09685.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.model import ModelConfig
from onehop.cost.flops import TRAINING, Flops, Pass, forward, looks, rows_of
from onehop.cost.weights import Weight

Place = tuple[int, int, int]  # layer (the embedding before, the head behind), sublayer, and order inside of it

SUBLAYERS = ("attention", "cross", "ffn")
ORDER = {"wq_down": 1, "wkv_down": 1, "q_norm": 2, "kv_norm": 2, "q_heads": 4, "k_heads": 4, "sinks": 4, "change": 4}
ORDER |= {"wo": 5, "w2": 5}
QUERIES, KEYS = {"wq", "wq_down", "q_norm", "q_heads"}, {"wk", "wkv", "wkv_down", "kv_norm", "k_heads"}
VALUES, SCORES_OWN = {"wv", "wkv", "wkv_down", "kv_norm"}, {"sinks", "change"}
MAPS, SCORES, BEHIND = 3, 4, 6  # what else stands in a sublayer; where scores are made; norms behind it
HEAD = 10**6  # the layer of what stands behind the last one
ENDS = ("final_norm", "head.transform.map", "head.transform.norm", "head.narrow", "head.projection")


@dataclass(frozen=True)
class Learning:
    """Names of the parameters that learn, and the ranks of the adapters beside maps, by the maps' names."""

    names: frozenset[str]
    ranks: Mapping[str, int] = field(default_factory=dict)

    def holds(self, w: Weight) -> bool:
        """Whether it learns; of a part of the user's own, whether anything does."""
        own = w.name.removesuffix("*")
        return w.name in self.names or (own != w.name and any(name.startswith(own) for name in self.names))

    def rank(self, w: Weight) -> int:
        """Of the adapter beside it; 0: none."""
        return self.ranks.get(w.name.removesuffix(".weight"), 0) if w.name.endswith(".weight") else 0


def training_flops(config: ModelConfig, weights: Sequence[Weight], step: Pass, learning: Learning) -> Flops:
    """FLOPs of one row forward and backward; in blocks that are parallel no fewer than these."""
    once = forward(config, weights, step)
    first = _First.of(config, weights, learning)
    counted = total = 0.0
    for w in weights:
        each = w.share * rows_of(w, step)
        before = first.before(w)
        counted += 2.0 * each * w.size
        total += 2.0 * each * w.size * (1 + learning.holds(w) + before)
        if rank := learning.rank(w):  # down reads what the map reads, and learns; up reads what learns, too
            total += 2.0 * each * rank * (w.shape[1] * (2 + before) + TRAINING * w.shape[0])
    if config.head.tied:
        size = config.need_vocab() * (config.embed.width or config.d_model)
        learns = "embed.tokens.weight" in learning.names
        counted += 2.0 * step.n_logits * size
        total += 2.0 * step.n_logits * size * (1 + learns + first.reaches((HEAD, len(ENDS) - 1, 0)))
    total += TRAINING * (once.products - counted)  # parts of the user's own: no more than this
    full, seen = _attention(config, step, first)
    return Flops(total, full, seen, once.missing)


@dataclass(frozen=True)
class _First:
    """The first place in each stack at which something learns (None: nowhere), and the first cross-attention."""

    decoder: Place | None
    encoder: Place | None
    cross: Place | None
    names: frozenset[str]  # parts of attentions that learn: layers.0.attention.wq
    scheme: bool  # whether a table of position biases does

    @classmethod
    def of(cls, config: ModelConfig, weights: Sequence[Weight], learning: Learning) -> "_First":
        learns = [w for w in weights if learning.holds(w) or learning.rank(w)]
        found = [min((_place(w) for w in learns if w.encoder == encoder), default=None) for encoder in (False, True)]
        if config.encoder is not None and config.encoder.share_embedding and "embed.tokens.weight" in learning.names:
            found[1] = (0, 0, 0)
        crossed = [(i + 1, 1, MAPS) for i, block in enumerate(config.layers()) if block.cross is not None]
        names = frozenset(".".join(w.name.split(".")[: 5 if w.encoder else 4]) for w in learns)
        return cls(found[0], found[1], min(crossed, default=None), names, any("schemes." in w.name for w in learns))

    def reaches(self, place: Place, *, encoder: bool = False) -> bool:
        """Whether what is read at a place depends on something that learns."""
        if encoder:
            return self.encoder is not None and self.encoder < place
        from_source = self.encoder is not None and self.cross is not None and self.cross < place
        return from_source or (self.decoder is not None and self.decoder < place)

    def before(self, w: Weight) -> bool:
        """Whether the input of a weight has a gradient: keys and values of a source have the encoder's."""
        return self.encoder is not None if w.rows == "source" else self.reaches(_place(w), encoder=w.encoder)


def _attention(config: ModelConfig, step: Pass, first: _First) -> tuple[float, float]:
    """FLOPs of scores and values there and back: over all pairs, and over those that are seen."""
    times: list[float] = []
    for i, block in enumerate(config.layers()):
        times.append(_times(block.attention, first, f"layers.{i}.attention", (i + 1, 0, 0)))
        if block.cross is not None:
            times.append(_times(block.cross, first, f"layers.{i}.cross", (i + 1, 1, 0)))
    if config.encoder is not None and not step.read_before:
        for i, block in enumerate(config.encoder.layers()):
            times.append(_times(block.attention, first, f"encoder.layers.{i}.attention", (i + 1, 0, 0)))
    full = seen = 0.0
    for look, n in zip(looks(config, step), times, strict=True):
        full, seen = full + n * look.full, seen + n * look.seen
    return full, seen


def _times(a: AttentionConfig, first: _First, name: str, place: Place) -> float:
    """How many forward passes of an attention it takes there and back: gradients of queries, keys, weights, values."""
    before = first.reaches((*place[:2], 1), encoder=name.startswith("encoder."))
    source = first.encoder is not None if ".cross" in name else before
    own = {leaf for leaf in ("wq", "wk", "wv", *ORDER, *SCORES_OWN) if f"{name}.{leaf}" in first.names}
    q = before or bool(own & QUERIES)
    k, v = (source or bool(own & made) for made in (KEYS, VALUES))
    scores = q or k or bool(own & SCORES_OWN) or (first.scheme and place[:2] == (1, 0))
    wide = a.d_value if isinstance(a, LatentConfig) else a.d_head
    back = a.d_head * (q + k) + wide * (scores + v)
    return 1 + back / (a.d_head + wide)


def _place(w: Weight) -> Place:
    """Where in the order of the forward pass a weight is read."""
    words = w.name.removeprefix("encoder.").split(".")
    if words[0] == "embed":
        return 0, ("tokens", "widen", "positions", "segments", "norm").index(words[1]), 0
    if words[0] == "schemes":  # the first layer reads the first one
        return 1, 0, SCORES
    if w.layer is None:
        name = ".".join(words).removesuffix(".weight").removesuffix(".bias")
        return HEAD, next(i for i, end in enumerate(ENDS) if name.startswith(end)), 0
    kind = words[2]
    if kind in ("inside", "outside"):
        return w.layer + 1, SUBLAYERS.index(words[3]), BEHIND
    if kind.endswith("_norm"):
        return w.layer + 1, SUBLAYERS.index(kind.removesuffix("_norm")), 0
    return w.layer + 1, SUBLAYERS.index(kind), max(ORDER.get(word, MAPS) for word in words[3:] or [""])
