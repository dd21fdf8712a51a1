"""Sources and targets as examples for an encoder-decoder, and their batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from onehop.base.errors import DataError
from onehop.data.examples import Example, Examples
from onehop.data.lines import shown, whole_characters
from onehop.data.loader import Batch
from onehop.data.pack import NO_TARGET
from onehop.data.records import Record
from onehop.text.tokenizer import Tokenizer

STEP = 8  # rows are padded to a multiple of it, so that there are few different shapes


@dataclass(frozen=True)
class Borders:
    """The token that a decoder begins with, and the one that ends an answer."""

    start: int
    end: int


def texts_of(records: Iterable[Record], fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The source and the target of each record. Raises DataError, naming the line, where one is no text."""
    for where, record in records:
        for field in fields:
            if field not in record:
                found = ", ".join(record) or "nothing"
                raise DataError(
                    f"{where} has no field {field!r} (it has {found}). Say which fields hold source and target: "
                    "task.source=… task.target=…"
                )
            if not isinstance(record[field], str) or not record[field]:
                what = "is empty" if record[field] == "" else f"is {shown(record[field])}, no text"
                raise DataError(f"{where}: the field {field!r} {what}. Give a text, or drop that line.")
        source, target = (whole_characters(record[field], where=where) for field in fields)
        yield source, target


def pair_example(pair: tuple[str, str], tokenizer: Tokenizer, borders: Borders) -> Example:
    """What the encoder reads, by the tokenizer's own rule, and what the decoder says after its start, to the end token.

    Where that rule begins a text with the token that the decoder starts with, it is not said again.
    """
    source, target = (tokenizer.encode(text) for text in pair)
    said = target[1:] if target[:1] == [borders.start] else target
    said = said if said[-1:] == [borders.end] else [*said, borders.end]
    return Example(said, [True] * len(said), source, n_bytes=len(pair[1].encode()))


def pair_rows(examples: Examples, borders: Borders, *, most: int) -> Callable[[np.ndarray, np.ndarray], Batch]:
    """What makes a batch of the examples with these numbers (B,), padded to at most `most` tokens."""

    def make(rows: np.ndarray, _: np.ndarray) -> Batch:
        sources = [_cut(examples.source, examples.source_starts, row) for row in rows]
        return batch_of(sources, [_cut(examples.tokens, examples.starts, row) for row in rows], borders, most=most)

    return make


def fitting(examples: Examples, length: int) -> np.ndarray:
    """The numbers of the examples both of whose sides have at most `length` tokens."""
    return np.flatnonzero((np.diff(examples.starts) <= length) & (np.diff(examples.source_starts) <= length))


@dataclass(frozen=True)
class Width:
    """How wide one side of a batch may become, whether with padding, and whether every row is as long."""

    most: int
    padded: bool
    even: bool

    @classmethod
    def of(cls, sizes: np.ndarray, most: int) -> "Width":
        """Rows of these `sizes` (n,), padded to at most `most` tokens."""
        shortest, longest = int(sizes.min()), int(sizes.max())
        width = _width(longest, most)
        return cls(width, shortest < width, shortest == longest)


def widths_of(examples: Examples, numbers: np.ndarray, most: int) -> tuple[Width, Width]:
    """How wide the sources and the targets of the examples with these numbers (n,) may become."""
    sides = (examples.source_starts, examples.starts)
    source, target = (Width.of(np.diff(starts)[numbers], most) for starts in sides)
    return source, target


def batch_of(sources: Sequence[np.ndarray], said: Sequence[np.ndarray], borders: Borders, *, most: int) -> Batch:
    """Rows of unequal length as a batch: the decoder reads its start and what it said, one place to the right.

    Padding alone makes no row longer than `most`.
    """
    source, source_at = _padded(sources, 0, most)
    targets, at = _padded(said, NO_TARGET, most)
    read, _ = _padded([np.concatenate([[borders.start], row[:-1]]) for row in said], 0, most)
    padded = bool((at < 0).any())
    return Batch(
        tokens=read,
        targets=targets,
        doc=torch.where(at < 0, -1, 0).to(torch.int32),
        at=at,
        n_targets=sum(map(len, said)),
        packed=False,
        padded=padded,
        source=source,
        source_at=source_at if bool((source_at < 0).any()) else None,
    )


def _padded(rows: Sequence[np.ndarray], filler: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as (B, T), T a multiple of STEP where that is no more than `most`, and positions in them, -1 on padding."""
    width = _width(max(map(len, rows)), most)
    values = np.full((len(rows), width), filler, dtype=np.int64)
    at = np.full((len(rows), width), -1, dtype=np.int64)
    for b, row in enumerate(rows):
        values[b, : len(row)], at[b, : len(row)] = row, np.arange(len(row))
    return torch.from_numpy(values), torch.from_numpy(at)


def _width(longest: int, most: int) -> int:
    return max(longest, min(-(-longest // STEP) * STEP, most))


def _cut(flat: np.ndarray, starts: np.ndarray, row: int) -> np.ndarray:
    return np.asarray(flat[starts[row] : starts[row + 1]], dtype=np.int64)
