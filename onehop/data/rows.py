"""Endless sequences of rows, any of which can be asked for by number: of one text, and of several in shares."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from onehop.base.errors import DataError
from onehop.base.units import human_count
from onehop.data.draws import shuffled, uniform
from onehop.data.mixture import Turns
from onehop.data.pack import NO_TARGET, StreamRows, WholeRows, fill, pack_whole
from onehop.data.shards import Shards

SHORT = 8  # tokens of a text of which no row is worth learning from
Columns = dict[str, np.ndarray]  # tokens, targets, doc, at: each (n, length)


class Readable(Protocol):
    """Rows 0, 1, 2, …; filled: the share of their places that holds tokens; packs: some may hold several documents."""

    @property
    def filled(self) -> float: ...

    @property
    def packs(self) -> bool: ...

    def take(self, numbers: np.ndarray) -> Columns:
        """The rows with these numbers (n,), which rise."""
        ...


class Rows(Readable, Protocol):
    """Rows without end."""

    def summary(self) -> str:
        """What the packing did, in one line."""
        ...


class ShardRows:
    """Every row of one text once, then again in another order.

    packing: "whole" (see `pack.pack_whole`; rows keep their contents) or "stream" (concatenated and cut, at another
    place in every epoch). A single document is always cut so: it gives other windows each time, and never overlapping
    ones. Refuses a text shorter than a row.
    """

    def __init__(self, shards: Shards, *, length: int, packing: str, seed: int):
        if shards.n_tokens <= length:
            shorter = (
                f", or use a shorter train.context (at most {shards.n_tokens - 1})" if shards.n_tokens > SHORT else ""
            )
            raise DataError(
                f"{shards.name} holds {shards.n_tokens} tokens, fewer than one row and its targets ({length} + 1). "
                f"Give more text{shorter}."
            )
        check_targets(shards)
        self.shards, self.length, self.seed = shards, length, seed
        self.whole = (
            pack_whole(shards.starts, length, seed=seed) if packing == "whole" and shards.n_documents > 1 else None
        )
        # One row less than there is, so that there is room to move the cuts.
        self.n_rows = self.whole.n_rows if self.whole else max(1, (shards.n_tokens - 1) // length - 1)
        self._epoch = -1
        self._order = np.zeros(0, dtype=np.int64)

    @property
    def n_used(self) -> int:
        """Tokens that stand in the rows of one epoch."""
        cells = self.n_rows * self.length
        return min(self.shards.n_tokens, cells) if self.whole is None else int(self.whole.size.sum())

    @property
    def filled(self) -> float:
        return self.n_used / (self.n_rows * self.length)

    @property
    def packs(self) -> bool:
        return self.shards.n_documents > 1 if self.whole is None else self.whole.packs

    def take(self, numbers: np.ndarray) -> Columns:
        """The rows with these numbers (n,), which rise."""
        epochs = numbers // self.n_rows
        parts = [self._of_epoch(int(epoch), numbers[epochs == epoch] % self.n_rows) for epoch in np.unique(epochs)]
        return joined(parts)

    def summary(self) -> str:
        """What the packing did, in one line."""
        cut = "" if self.whole is None else f", {self.whole.n_cut} of {self.shards.n_documents} documents cut"
        return f"{human_count(self.n_rows)} rows of {self.length} tokens, {self.filled:.1%} filled{cut}"

    def _of_epoch(self, epoch: int, numbers: np.ndarray) -> Columns:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, shuffled(self.n_rows, (self.seed << 32) + epoch)
        table: WholeRows | StreamRows
        if self.whole is not None:
            table = self.whole
        else:
            room = self.shards.n_tokens - self.n_rows * self.length  # at least one token, the last target
            origin = int(uniform(np.array([epoch]), self.seed)[0] * room)
            table = StreamRows(self.length, self.shards.starts, self.n_rows, origin)
        segments = table.segments(self._order[numbers])
        return fill(self.shards.tokens, segments, n_rows=len(numbers), length=self.length)


class RowsOnce:
    """Every row of one text once, in an order that is always the same; a text shorter than a row is one padded row."""

    def __init__(self, shards: Shards, *, length: int, packing: str):
        check_targets(shards)
        self.shards, self.length = shards, length
        self._table: WholeRows | StreamRows
        if packing == "whole":
            self._table = pack_whole(shards.starts, length, seed=0)
        else:
            self._table = StreamRows(length, shards.starts, -(-(shards.n_tokens - 1) // length))
        self.n_rows = self._table.n_rows
        self.filled = shards.n_tokens / (self.n_rows * length)
        self.packs = shards.n_documents > 1 if isinstance(self._table, StreamRows) else self._table.packs
        self._order = shuffled(self.n_rows, 0)

    def take(self, numbers: np.ndarray) -> Columns:
        """The rows with these numbers (n,)."""
        segments = self._table.segments(self._order[numbers])
        return fill(self.shards.tokens, segments, n_rows=len(numbers), length=self.length)


class MixedRows:
    """Rows of several texts in turn, so that of all tokens each text has its share; a row holds one text only."""

    def __init__(self, parts: Sequence[Readable], shares: Sequence[float], *, seed: int):
        self.parts = parts
        filled = np.array([part.filled for part in parts])
        by_row = np.array(shares) / filled
        self.filled = float((filled * by_row).sum() / by_row.sum())
        self.packs = any(part.packs for part in parts)
        self._turns = Turns(by_row, seed=seed)

    def take(self, numbers: np.ndarray) -> Columns:
        """The rows with these numbers (n,), which rise by one."""
        whose, index = self._turns.at(int(numbers[0]), len(numbers))
        found = {i: self.parts[i].take(index[whose == i]) for i in np.unique(whose)}
        places = np.concatenate([np.flatnonzero(whose == i) for i in found])
        return {name: values[np.argsort(places)] for name, values in joined(list(found.values())).items()}

    def summary(self) -> str:
        """What the packing did, in one line."""
        return f"{len(self.parts)} sources, {self.filled:.1%} filled"

    def once(self, sizes: Sequence[int]) -> int:
        """How many rows there are before a text of so many rows has to be repeated."""
        whose, _ = self._turns.at(0, sum(sizes) + 1)
        beyond = [np.flatnonzero(whose == i)[size:][:1] for i, size in enumerate(sizes)]
        return min(int(first[0]) for first in beyond if len(first))


def joined(parts: Sequence[Columns]) -> Columns:
    """Rows below each other."""
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_padding(rows: Columns, *, n_rows: int) -> Columns:
    """The rows, and below them as many of padding as make `n_rows`."""
    nothing = {"tokens": 0, "targets": NO_TARGET, "doc": -1, "at": -1}
    more = n_rows - len(rows["tokens"])
    return {name: np.pad(values, ((0, more), (0, 0)), constant_values=nothing[name]) for name, values in rows.items()}


def check_targets(shards: Shards) -> None:
    """Refuse documents of one token each."""
    if shards.n_targets == 0:
        raise DataError(f"{shards.name} has nothing to predict: its documents are one token long. Give more text.")
