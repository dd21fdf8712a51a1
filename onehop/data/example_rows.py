"""Batches of examples, in an order that depends on the seed and on nothing else; and conversations as rows."""

from collections.abc import Callable, Iterator

import numpy as np

from onehop.base.errors import DataError
from onehop.data.draws import shuffled
from onehop.data.examples import Examples
from onehop.data.loader import Batch
from onehop.data.pack import NO_TARGET, WholeRows, fill

Make = Callable[[np.ndarray, np.ndarray], Batch]  # numbers of rows (B,), and in which epoch each is read (B,)
EVALUATION = -1  # instead of an epoch


class RowLoader:
    """Batches without end of the rows with these `numbers`: every row once, then again in another order."""

    def __init__(self, make: Make, numbers: np.ndarray, *, batch_size: int, seed: int, about: str):
        if not len(numbers):
            raise DataError("no example fits into a row. Give shorter ones, or raise train.context.")
        self.make, self.numbers, self.batch_size, self.seed, self.about = make, numbers, batch_size, seed, about
        self._epoch, self._rows = EVALUATION, numbers  # of no epoch yet

    @property
    def n_rows(self) -> int:
        """Rows in an epoch."""
        return len(self.numbers)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch number `start` and all that follow; no batch before it is made."""
        number = start
        while True:
            yield self.batch(number)
            number += 1

    def batch(self, number: int) -> Batch:
        """Batch `number` (from 0) of the endless sequence."""
        at = number * self.batch_size + np.arange(self.batch_size)
        epochs, places = at // self.n_rows, at % self.n_rows
        rows = np.array([self._order(int(e))[p] for e, p in zip(epochs, places, strict=True)])
        return self.make(rows, epochs)

    def _order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in their order; the last one that was asked for is kept."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._rows = self.numbers[shuffled(self.n_rows, (self.seed << 32) + epoch)]
        return self._rows

    def summary(self) -> str:
        """What became of the examples, in one line."""
        return self.about


def evaluation_rows(make: Make, numbers: np.ndarray, *, batch_size: int, n_rows: int | None = None) -> Iterator[Batch]:
    """Every row once, or the same `n_rows` of them each time, drawn at random."""
    chosen = numbers[shuffled(len(numbers), 0)[:n_rows]]
    for first in range(0, len(chosen), batch_size):
        rows = chosen[first : first + batch_size]
        yield make(rows, np.full(len(rows), EVALUATION))


def chat_rows(examples: Examples, table: WholeRows) -> Make:
    """What makes a batch of rows of whole conversations, of which only the learned tokens are targets."""

    def make(rows: np.ndarray, _: np.ndarray) -> Batch:
        segments, size = table.segments(rows), {"n_rows": len(rows), "length": table.length}
        found = fill(examples.tokens, segments, **size)
        learned = fill(examples.learned, segments, **size)["targets"]  # whether the next token is one to learn
        found["targets"] = np.where(learned == 1, found["targets"], NO_TARGET)
        return Batch.of(found)

    return make
