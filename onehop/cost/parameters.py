"""How many parameters a model has, in all and of each kind."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from onehop.cost.weights import EMBEDDING, Weight


@dataclass(frozen=True)
class Parameters:
    """Counts of numbers that are learned.

    `active` are those that one token meets: of routed experts, n_active of n_experts. `embedding` are the tables with a
    row for each token id, position or segment, an untied head's matrix included; `non_embedding` is the rest, the N of
    Kaplan et al. 2020, arXiv:2001.08361, section 1.3; `active_non_embedding` those of it that one token meets.
    `by_layer` counts the decoder's layers, `by_encoder_layer` the encoder's. With anything in `missing` all figures are
    lower bounds.
    """

    total: int
    active: int
    embedding: int
    non_embedding: int
    active_non_embedding: int
    by_part: dict[str, int]
    by_layer: list[int]
    by_encoder_layer: list[int] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def count(weights: Sequence[Weight]) -> Parameters:
    """Add up `weights`."""
    total = sum(w.size for w in weights)
    table = sum(w.size for w in weights if _by_id(w))
    by_part: dict[str, int] = {}
    for w in weights:
        name = f"encoder {w.part}" if w.encoder else w.part
        by_part[name] = by_part.get(name, 0) + w.size
    return Parameters(
        total=total,
        active=round(sum(w.size * w.share for w in weights)),
        embedding=table,
        non_embedding=total - table,
        active_non_embedding=round(sum(w.size * w.share for w in weights if not _by_id(w))),
        by_part={name: n for name, n in by_part.items() if n},
        by_layer=_by_layer([w for w in weights if not w.encoder]),
        by_encoder_layer=_by_layer([w for w in weights if w.encoder]),
        missing=list(dict.fromkeys(w.missing for w in weights if w.missing is not None)),
    )


def _by_id(w: Weight) -> bool:
    """Whether a weight is a table with a row for each id, position or segment."""
    return w.part in EMBEDDING or w.name.endswith("head.projection.weight")


def _by_layer(weights: Sequence[Weight]) -> list[int]:
    """Parameters of each layer, first to last."""
    n = max((w.layer + 1 for w in weights if w.layer is not None), default=0)
    out = [0] * n
    for w in weights:
        if w.layer is not None:
            out[w.layer] += w.size
    return out
