"""Token shards -> packed batches (B, T), in an order that depends on the seed and on nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onehop.base.errors import DataError
from onehop.base.units import human_count
from onehop.data.draws import shuffled, uniform
from onehop.data.pack import StreamRows, WholeRows, fill, pack_whole
from onehop.data.shards import Shards

PACKINGS = ("whole", "stream")


@dataclass(frozen=True)
class Batch:
    """Rows of packed documents, each (B, T).

    tokens int64; targets int64: the next token of the same document, -100 where there is none; doc int32: number of the
    document in its row, -1 on padding; at int64: position in the document's piece, -1 on padding. packed: some row
    holds more than one document; padded: some position holds none.
    """

    tokens: Tensor
    targets: Tensor
    doc: Tensor
    at: Tensor
    n_targets: int
    packed: bool
    padded: bool

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`; to a GPU the copy overlaps with what follows."""
        moved = {}
        for name in ("tokens", "targets", "doc", "at"):
            tensor = getattr(self, name)
            if torch.device(device).type == "cuda":
                tensor = tensor.pin_memory()
            moved[name] = tensor.to(device, non_blocking=True)
        return replace(self, **moved)


class Loader:
    """Batches of `batch_size` rows of `length` tokens, without end: every row once, then again in another order.

    packing: "whole" (see `pack.pack_whole`; rows keep their contents) or "stream" (concatenated and cut, at another
    place in every epoch). A single document is always cut so: it gives other windows each time, and never overlapping
    ones. Refuses a text shorter than a row.
    """

    def __init__(self, shards: Shards, *, batch_size: int, length: int, packing: str = "whole", seed: int = 0):
        _check_packing(packing)
        if shards.n_tokens <= length:
            raise DataError(
                f"{shards.name} holds {shards.n_tokens} tokens, fewer than one row and its targets ({length} + 1). "
                f"Give more text, or use a shorter train.context (at most {max(shards.n_tokens - 1, 0)})."
            )
        _check_targets(shards)
        self.shards, self.batch_size, self.length, self.seed = shards, batch_size, length, seed
        self._whole = (
            pack_whole(shards.starts, length, seed=seed) if packing == "whole" and shards.n_documents > 1 else None
        )
        # One row less than there is, so that there is room to move the cuts.
        self.n_rows = self._whole.n_rows if self._whole else max(1, (shards.n_tokens - 1) // length - 1)
        self._epoch = -1
        self._order = np.zeros(0, dtype=np.int64)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch number `start` and all that follow; no batch before it is made."""
        number = start
        while True:
            yield self.batch(number)
            number += 1

    def batch(self, number: int) -> Batch:
        """Batch `number` (from 0) of the endless sequence."""
        at = number * self.batch_size + np.arange(self.batch_size)
        epochs = at // self.n_rows
        parts = [self._rows(int(epoch), at[epochs == epoch] % self.n_rows) for epoch in np.unique(epochs)]
        return _batch({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def summary(self) -> str:
        """What the packing did, in one line."""
        cells = self.n_rows * self.length
        used = min(self.shards.n_tokens, cells) if self._whole is None else int(self._whole.size.sum())
        cut = "" if self._whole is None else f", {self._whole.n_cut} of {self.shards.n_documents} documents cut"
        return f"{human_count(self.n_rows)} rows of {self.length} tokens, {used / cells:.1%} filled{cut}"

    def _rows(self, epoch: int, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, shuffled(self.n_rows, (self.seed << 32) + epoch)
        table: WholeRows | StreamRows
        if self._whole is not None:
            table = self._whole
        else:
            room = self.shards.n_tokens - self.n_rows * self.length  # at least one token, the last target
            origin = int(uniform(np.array([epoch]), self.seed)[0] * room)
            table = StreamRows(self.length, self.shards.starts, self.n_rows, origin)
        segments = table.segments(self._order[numbers])
        return fill(self.shards.tokens, segments, n_rows=len(numbers), length=self.length)


def evaluation_batches(
    shards: Shards, *, batch_size: int, length: int, packing: str = "whole", n_rows: int | None = None
) -> Iterator[Batch]:
    """Every row once, or the same `n_rows` of them each time, drawn at random.

    Every target is counted once: nothing is dropped at the end, and the last batch is filled up with padding. A text
    shorter than a row is one padded row.
    """
    _check_packing(packing)
    _check_targets(shards)
    table: WholeRows | StreamRows
    if packing == "whole":
        table = pack_whole(shards.starts, length, seed=0)
    else:
        table = StreamRows(length, shards.starts, -(-(shards.n_tokens - 1) // length))
    chosen = shuffled(table.n_rows, 0)[:n_rows]
    for first in range(0, len(chosen), batch_size):
        segments = table.segments(chosen[first : first + batch_size])
        yield _batch(fill(shards.tokens, segments, n_rows=batch_size, length=length))


def _check_packing(packing: str) -> None:
    if packing not in PACKINGS:
        raise DataError(f"data.packing={packing!r} does not exist. Use {' or '.join(PACKINGS)}.")


def _check_targets(shards: Shards) -> None:
    if shards.n_targets == 0:
        raise DataError(f"{shards.name} has nothing to predict: its documents are one token long. Give more text.")


def _batch(rows: dict[str, np.ndarray]) -> Batch:
    return Batch(
        **{name: torch.from_numpy(values) for name, values in rows.items()},
        n_targets=int((rows["targets"] >= 0).sum()),
        packed=bool((rows["doc"] > 0).any()),
        padded=bool((rows["doc"] < 0).any()),
    )


def joined(batch: Batch) -> Batch:
    """The same rows, each as one document: tokens see those of the documents before, positions run through the row.

    A document's last token still has no target: what follows it in a row is chance.
    """
    there = batch.at >= 0
    at = torch.where(there, there.cumsum(dim=1) - 1, -1)
    return replace(batch, doc=torch.where(there, 0, -1).to(torch.int32), at=at, packed=False)
