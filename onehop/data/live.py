"""Text that is tokenised while it is learned from: nothing of it is stored, and every row can be found again."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from onehop.base.errors import DataError
from onehop.base.files import append
from onehop.data.draws import shuffled
from onehop.data.pack import StreamRows, WholeRows, fill, pack_whole
from onehop.data.rows import Columns, joined
from onehop.data.shards import encoded
from onehop.data.sources import Place, Source
from onehop.data.split import Split
from onehop.text.tokenizer import Tokenizer

WINDOW = 1 << 23  # characters that are held, packed and shuffled together


@dataclass(frozen=True)
class Live:
    """The training side of a text: all documents but those that the split took from the first `n_head` of them.

    folder: where the places of windows are noted.
    """

    source: Source
    split: Split
    n_head: int
    tokenizer: Tokenizer
    folder: Path

    def documents(self, start: Place) -> Iterator[tuple[Place, str]]:
        """(the place behind it, a document of the training side) from `start` on; "" for one of the other side."""
        held = self.split.chosen(self.n_head)
        before = start.number
        for place, document in self.source.placed(start):
            if self.source.n_documents is not None and before >= self.source.n_documents:
                return
            if document and self.split.single:
                document, _ = self.split.cut(document)
            elif document and before < self.n_head and held[before]:
                document = ""
            before = place.number
            yield place, document


@dataclass(frozen=True)
class _Window:
    """Documents one after the other, about `WINDOW` characters of them: their tokens, and a table of their rows."""

    behind: Place
    tokens: np.ndarray
    table: WholeRows | StreamRows


class LiveRows:
    """Windows of the text one after the other, without end; in each the rows in an order that the seed decides.

    What a window holds, and so how many rows it makes, follows from the text alone. Where each window begins (its first
    row, and the place in the text) is added to a file, so that a run that is resumed begins at the window that it left;
    without that file the same rows are found by tokenising the text from its beginning. The next window is made while
    this one is read.
    """

    packs = True  # as far as is known before
    filled = 1.0  # but for the last row of a window, or what best fit leaves: not known before

    def __init__(self, live: Live, *, length: int, packing: str, seed: int):
        self.live, self.length, self.packing, self.seed = live, length, packing, seed
        self._file = live.folder / f"places-{length}-{packing}-{seed}.jsonl"
        self._begins, self._places = _read_places(self._file)
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._reading: Iterator[_Window] = iter(())
        self._coming: Future[_Window] | None = None
        self._window: _Window | None = None
        self._number = -1  # of the window
        self._order = np.zeros(0, dtype=np.int64)

    def take(self, numbers: np.ndarray) -> Columns:
        """The rows with these numbers (n,), which rise."""
        parts = []
        while len(numbers):
            window = self._with(int(numbers[0]))
            inside = numbers < self._begins[self._number + 1]
            rows = self._order[numbers[inside] - self._begins[self._number]]
            parts.append(fill(window.tokens, window.table.segments(rows), n_rows=len(rows), length=self.length))
            numbers = numbers[~inside]
        return joined(parts)

    def summary(self) -> str:
        """What the packing did, in one line."""
        return f"rows of {self.length} tokens, made while training"

    def _with(self, number: int) -> _Window:
        """The window that holds a row."""
        known = bisect_right(self._begins, number) - 1
        if self._window is None or not self._number <= known <= self._number + 1:
            self._number, self._window, self._coming = known - 1, None, None
            self._reading = self._windows(known)
        while self._window is None or number >= self._begins[self._number + 1]:
            self._window = self._next()
        return self._window

    def _next(self) -> _Window:
        window = self._coming.result() if self._coming is not None else next(self._reading)
        self._coming = self._pool.submit(next, self._reading)
        self._number += 1
        self._order = shuffled(window.table.n_rows, (self.seed << 32) + self._number)
        if len(self._begins) == self._number + 1:
            self._begins.append(self._begins[self._number] + window.table.n_rows)
            self._places.append(window.behind)
            line = {"window": self._number + 1, "row": self._begins[-1], **asdict(window.behind)}
            append(self._file, json.dumps(line) + "\n")
        return window

    def _windows(self, number: int) -> Iterator[_Window]:
        """Window `number` and all that follow."""
        place = self._places[number]
        while True:
            n_rows = 0
            for behind, texts in self._texts(place):
                window = self._packed(behind, texts, seed=(self.seed << 32) + number)
                n_rows += window.table.n_rows
                yield window
                number += 1
            if n_rows == 0 and place == Place():
                raise DataError(f"{self.live.source.description} has nothing to predict. Give more text.")
            place = Place()

    def _texts(self, place: Place) -> Iterator[tuple[Place, list[str]]]:
        """(the place behind them, the documents of a window) to the end of the text, whose last window is shorter."""
        texts: list[str] = []
        size = 0
        for behind, text in self.live.documents(place):
            if text:
                texts.append(text)
                size += len(text)
            if size >= WINDOW:
                yield behind, texts
                texts, size = [], 0
        if texts:
            yield Place(), texts

    def _packed(self, behind: Place, texts: list[str], *, seed: int) -> _Window:
        groups = encoded(((text, None) for text in texts), self.live.tokenizer)
        documents = [ids for group in groups for ids, _, _ in group if len(ids) > 1]
        starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])]).astype(np.int64)
        tokens = np.concatenate(documents) if documents else np.zeros(0, dtype=np.uint16)
        table: WholeRows | StreamRows
        if self.packing == "whole":
            table = pack_whole(starts, self.length, seed=seed)
        else:
            table = StreamRows(self.length, starts, -(-max(len(tokens) - 1, 0) // self.length))
        return _Window(behind, tokens, table)


def _read_places(file: Path) -> tuple[list[int], list[Place]]:
    """(the first row, the place) of each window that is known; half-written lines do not count."""
    begins, places = [0], [Place()]
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            number, begin = row.pop("window"), row.pop("row")
            place = Place(**row)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if number == len(begins):  # two runs may have noted the same
            begins.append(begin)
            places.append(place)
    return begins, places
