"""How far a path may be from the definition: measured, sublayer by sublayer, in units of the dtype's precision.

The truth is the plain definition in float64, made with one layer in float64 at a time. On every path each sublayer is
then given the truth's own input, rounded to the model's dtype, so that errors do not add up with the depth, no expert
is chosen otherwise because of an earlier rounding, and a fault shows in the sublayer that has it.

A difference is the length of a token's error over the length of its true vector, of the token that is worst off, in
units of the dtype's eps (2^-7 for bfloat16, 2^-23 for float32). Allowed is FACTOR times what the plain definition
itself loses there in that dtype, and FLOOR units: the factor because the worst of some dozens of random errors of the
same size is rarely twice the worst of others, the floor because a sublayer in which the definition happens to lose
nothing would leave no room for another order of sums. (FlashAttention's own tests judge its kernels in this way.)
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onehop.model.taps import listen, tap_names
from onehop.model.transformer import Embedding, Transformer
from onehop.parts.places import Places

GIVEN = frozenset({"in", "attention_norm", "cross_norm", "ffn_norm", "final_norm"})  # the truth's, on every path
COMPARED = frozenset({"attention", "cross", "ffn", "out", "final_norm", "logits"})
FACTOR, FLOOR = 3.0, 1.0
ROWS = 4096  # rows of the head's matrix that are in float64 at a time


@dataclass(frozen=True, eq=False)
class Truth:
    """Texts in float64: each compared activation (B, T, …), and what was handed on, rounded to the model's dtype."""

    values: dict[str, Tensor] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)


class Part(NamedTuple):
    """Some tokens of one row of a truth."""

    truth: Truth
    row: int
    start: int
    stop: int


class Laid(NamedTuple):
    """How a pass lays out its tokens: for each row of the batch its parts, and those of its source (encoder)."""

    rows: Sequence[Sequence[Part]]
    sources: Sequence[Sequence[Part]] = ()


def truth_of(model: Transformer, *inputs: Tensor, dtype: torch.dtype | None = None) -> Truth:
    """The plain definition in float64 on (tokens,) or (source, tokens); what is handed on is rounded to `dtype`."""
    truth, to = Truth(), dtype or model.embed.tokens.weight.dtype

    def keep(name: str, value: Tensor) -> Tensor | None:
        last = name.rpartition(".")[2]
        if last in COMPARED:
            truth.values[name] = value
        if last not in GIVEN:
            return None
        truth.given[name] = value.to(to)
        return truth.given[name].to(value.dtype)

    run_in(model, torch.float64, keep, *inputs)
    return truth


def run_in(
    model: Transformer, dtype: torch.dtype, edit: Callable[[str, Tensor], Tensor | None], *inputs: Tensor
) -> None:
    """One pass of the plain definition in another dtype, one layer converted at a time; `edit` as in `listen`."""
    names = [name for name in heard(model) if name != "logits"]
    with listen(model, names, edit) as ear, _converted(model, dtype):
        memory = None if model.encoder is None else model.encode(inputs[0], kernel="plain", listener=ear)
        hidden = model.states(inputs[-1], memory=memory, kernel="plain", listener=ear).hidden  # (B, T, C)
        for part in (model.head.transform, model.head.narrow):
            hidden = copy.deepcopy(part).to(dtype)(hidden)
        projection = model.head.projection
        parts = [hidden @ rows.to(dtype).mT for rows in projection.weight.split(ROWS)]
        logits = torch.cat(parts, dim=-1)  # (B, T, V)
        logits = logits if projection.bias is None else logits + projection.bias.to(dtype)
        edit("logits", model.head.finished(logits))


def heard(model: Transformer) -> list[str]:
    """The activations that are compared or given, in their order."""
    return [name for name in tap_names(model) if name.rpartition(".")[2] in GIVEN | COMPARED]


class Comparison:
    """Gives each sublayer the truth's input and keeps the largest difference of each activation, in units of `eps`.

    `laid` says which tokens the present pass computes; whoever runs a pass sets it before.
    """

    def __init__(self, eps: float):
        self.eps, self.laid = eps, Laid(())
        self.worst: dict[str, float] = {}

    def edit(self, name: str, value: Tensor) -> Tensor | None:
        """Compare an activation, and put the truth in its place."""
        rows = self.laid.sources if name.startswith("encoder.") else self.laid.rows
        last = name.rpartition(".")[2]
        if last in COMPARED:
            want, real = _assembled([[(p.truth.values[name], p) for p in row] for row in rows])
            self.worst[name] = max(self.worst.get(name, 0.0), distance(value, want, real) / self.eps)
        if last not in GIVEN:
            return None
        want, real = _assembled([[(p.truth.given[name], p) for p in row] for row in rows])
        return torch.where(real.unsqueeze(-1), want.to(value), value)


def distance(found: Tensor, want: Tensor, real: Tensor | None = None) -> float:
    """The error's length over the true vector's, of the worst token among `real` ones; NaN counts as infinite."""
    error = (found.to(want) - want).norm(dim=-1)  # (B, T)
    share = torch.where(error == 0, 0.0, error / want.norm(dim=-1))
    share = share if real is None else share[real]
    worst = float(share.max()) if share.numel() else 0.0
    return math.inf if math.isnan(worst) else worst


def allowed(lost: Mapping[str, float]) -> dict[str, float]:
    """What each activation may differ by, from what the definition itself loses there."""
    return {name: bound(units, FLOOR) for name, units in lost.items()}


def bound(units: float, floor: float) -> float:
    """What is allowed where the definition loses `units`: nothing where it breaks down (NaN or infinite numbers)."""
    return FACTOR * units + floor if math.isfinite(units) else 0.0


def _assembled(rows: Sequence[Sequence[tuple[Tensor, Part]]]) -> tuple[Tensor, Tensor]:
    """The parts of each row end to end, padded on the left: (B, T, …), and which slots are real, (B, T)."""
    whole = [torch.cat([x[p.row, p.start : p.stop] for x, p in row]) for row in rows]
    width = max(map(len, whole))
    out = whole[0].new_zeros(len(rows), width, whole[0].size(-1))
    real = torch.zeros(len(rows), width, dtype=torch.bool, device=out.device)
    for b, row in enumerate(whole):
        out[b, width - len(row) :] = row
        real[b, width - len(row) :] = True
    return out, real


class _As(nn.Module):
    """A part in another dtype, in memory only while it computes. Listeners on it hear the copy."""

    def __init__(self, part: nn.Module, dtype: torch.dtype):
        super().__init__()
        self._part, self._dtype = (part,), dtype  # in a tuple: not registered

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return copy.deepcopy(self._part[0]).to(self._dtype)(x.to(self._dtype), *rest)


class _EmbeddingAs(nn.Module):
    """An embedding in another dtype, with no more rows than are read."""

    def __init__(self, embed: Embedding, dtype: torch.dtype):
        super().__init__()
        self._embed, self._dtype = (embed,), dtype
        self.check_length, self.check_segments = embed.check_length, embed.check_segments

    def forward(self, tokens: Tensor, places: Places, segments: Tensor | None = None) -> Tensor:
        embed = self._embed[0]
        rows = embed._rows[0]
        ids, at = tokens.unique(return_inverse=True)
        few = nn.Embedding(len(ids), rows.embedding_dim, _weight=rows.weight[ids].to(self._dtype))
        same: dict[int, Any] = {id(rows): few}  # what stands in the copy instead of the whole table
        return copy.deepcopy(embed, same).to(self._dtype)(at, places, segments)


@contextmanager
def _converted(model: Transformer, dtype: torch.dtype) -> Iterator[None]:
    """The embeddings, layers and last norms of all stacks in another dtype, while the block runs."""
    stacks: list[Any] = [model] if model.encoder is None else [model, model.encoder]
    kept = [(stack, stack.embed, stack.layers, stack.final_norm) for stack in stacks]
    try:
        for stack, embed, layers, norm in kept:
            stack.embed = _EmbeddingAs(embed, dtype)
            stack.layers = nn.ModuleList(_As(layer, dtype) for layer in layers)
            stack.final_norm = _As(norm, dtype)
        yield
    finally:
        for stack, embed, layers, norm in kept:
            stack.embed, stack.layers, stack.final_norm = embed, layers, norm
