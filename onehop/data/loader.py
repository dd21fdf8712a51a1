"""Token shards -> packed batches (B, T), in an order that depends on the seed and on nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onehop.base.errors import DataError
from onehop.data.live import Live, LiveRows
from onehop.data.mixture import Mixture
from onehop.data.rows import Columns, MixedRows, Rows, RowsOnce, ShardRows, with_padding
from onehop.data.shards import Shards

PACKINGS = ("whole", "stream")
Text = Shards | Live | Mixture[Shards] | Mixture[Live]


@dataclass(frozen=True)
class Batch:
    """Rows of packed documents, each (B, T).

    tokens int64; targets int64: the next token of the same document, -100 where there is none; doc int32: number of the
    document in its row, -1 on padding; at int64: position in the document's piece, -1 on padding. packed: some row
    holds more than one document; padded: some position holds none. For encoder-decoders: source (B, S) int64, and its
    positions source_at, -1 on padding (None: nothing is padded); tokens are what the decoder reads then.
    """

    tokens: Tensor
    targets: Tensor
    doc: Tensor
    at: Tensor
    n_targets: int
    packed: bool
    padded: bool
    source: Tensor | None = None
    source_at: Tensor | None = None

    @classmethod
    def of(cls, rows: Columns) -> "Batch":
        """Rows of packed documents as a batch."""
        return cls(
            **{name: torch.from_numpy(values) for name, values in rows.items()},
            n_targets=int((rows["targets"] >= 0).sum()),
            packed=bool((rows["doc"] > 0).any()),
            padded=bool((rows["doc"] < 0).any()),
        )

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on `device`; to a GPU the copy overlaps with what follows."""
        moved = {}
        for name in ("tokens", "targets", "doc", "at", "source", "source_at"):
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if torch.device(device).type == "cuda":
                tensor = tensor.pin_memory()
            moved[name] = tensor.to(device, non_blocking=True)
        return replace(self, **moved)


class Loader:
    """Batches of `batch_size` rows of `length` tokens, without end; any of them can be asked for by its number.

    text: shards (`rows.ShardRows`: every row once, then again in another order), text that is tokenised meanwhile
    (`live.LiveRows`), or a mixture of either (`rows.MixedRows`). packing: "whole" or "stream".
    """

    def __init__(self, text: Text, *, batch_size: int, length: int, packing: str = "whole", seed: int = 0):
        _check_packing(packing)
        self.batch_size, self.length, self.packing = batch_size, length, packing
        self.rows = _rows_of(text, length=length, packing=packing, seed=seed)

    @property
    def n_rows(self) -> int | None:
        """Rows of an epoch of one text; of a mixture and of streamed text none is known."""
        return self.rows.n_rows if isinstance(self.rows, ShardRows) else None

    @property
    def packs(self) -> bool:
        """Whether some row may hold several documents."""
        return self.rows.packs

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch number `start` and all that follow; no batch before it is made."""
        number = start
        while True:
            yield self.batch(number)
            number += 1

    def batch(self, number: int) -> Batch:
        """Batch `number` (from 0) of the endless sequence."""
        return Batch.of(self.rows.take(number * self.batch_size + np.arange(self.batch_size)))

    def summary(self) -> str:
        """What the packing did, in one line."""
        return self.rows.summary()


def _rows_of(text: Text, *, length: int, packing: str, seed: int) -> Rows:
    if isinstance(text, Mixture):
        parts = [_rows_of(part, length=length, packing=packing, seed=seed) for part in text.parts]
        return MixedRows(parts, text.shares, seed=seed)
    if isinstance(text, Live):
        return LiveRows(text, length=length, packing=packing, seed=seed)
    return ShardRows(text, length=length, packing=packing, seed=seed)


def evaluation_batches(
    text: Shards | Mixture[Shards],
    *,
    batch_size: int,
    length: int,
    packing: str = "whole",
    n_rows: int | None = None,
) -> Iterator[Batch]:
    """Every row once, or the same `n_rows` of them each time, drawn at random.

    Every target is counted once: nothing is dropped at the end, and the last batch is filled up with padding. A text
    shorter than a row is one padded row. Of a mixture, rows are read in the mixture's shares until one text ends.
    """
    _check_packing(packing)
    rows: RowsOnce | MixedRows
    if isinstance(text, Mixture):
        parts = [RowsOnce(part, length=length, packing=packing) for part in text.parts]
        rows = MixedRows(parts, text.shares, seed=0)
        n_all = rows.once([part.n_rows for part in parts])
    else:
        rows = RowsOnce(text, length=length, packing=packing)
        n_all = rows.n_rows
    n = n_all if n_rows is None else min(n_rows, n_all)
    for first in range(0, n, batch_size):
        found = rows.take(np.arange(first, min(first + batch_size, n)))
        yield Batch.of(with_padding(found, n_rows=batch_size))


def _check_packing(packing: str) -> None:
    if packing not in PACKINGS:
        raise DataError(f"data.packing={packing!r} does not exist. Use {' or '.join(PACKINGS)}.")


def joined(batch: Batch) -> Batch:
    """The same rows, each as one document: tokens see those of the documents before, positions run through the row.

    A document's last token still has no target: what follows it in a row is chance.
    """
    there = batch.at >= 0
    at = torch.where(there, there.cumsum(dim=1) - 1, -1)
    return replace(batch, doc=torch.where(there, 0, -1).to(torch.int32), at=at, packed=False)
