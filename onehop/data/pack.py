"""How documents share the rows of a batch: index tables that say which stretch of the tokens stands where."""

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from onehop.data.draws import shuffled

NO_TARGET = -100


@dataclass(frozen=True)
class Segments:
    """Stretches of tokens in the rows of a batch, ordered by row and place: arrays (n,).

    row, offset: where it begins; start, size: which tokens of the shards; last: it ends with its document's last token,
    which has no target.
    """

    row: np.ndarray
    offset: np.ndarray
    start: np.ndarray
    size: np.ndarray
    last: np.ndarray


@dataclass(frozen=True)
class WholeRows:
    """Rows of whole documents: row r has the segments first[r]:first[r + 1]."""

    length: int
    first: np.ndarray  # (n_rows + 1,)
    start: np.ndarray  # (n_segments,)
    size: np.ndarray  # (n_segments,)
    last: np.ndarray  # (n_segments,)
    n_cut: int  # documents longer than a row

    @property
    def n_rows(self) -> int:
        return len(self.first) - 1

    @property
    def packs(self) -> bool:
        """Whether some row holds several documents."""
        return bool((np.diff(self.first) > 1).any())

    def segments(self, rows: np.ndarray) -> Segments:
        """The segments of the rows with these numbers (B,)."""
        counts = self.first[rows + 1] - self.first[rows]
        chosen = _ranges(self.first[rows], counts)
        size = self.size[chosen].astype(np.int64)
        ends = np.cumsum(size)
        before_row = np.concatenate([[0], ends])[np.cumsum(counts) - counts]
        offset = ends - size - np.repeat(before_row, counts)
        row = np.repeat(np.arange(len(rows)), counts)
        return Segments(row, offset, self.start[chosen], size, self.last[chosen])


@dataclass(frozen=True)
class StreamRows:
    """Rows cut from the concatenation of all documents, from `origin` on, whatever they cut through."""

    length: int
    starts: np.ndarray  # (n_documents + 1,)
    n_rows: int
    origin: int = 0

    def segments(self, rows: np.ndarray) -> Segments:
        """The segments of the rows with these numbers (B,)."""
        begin = self.origin + rows.astype(np.int64) * self.length
        end = np.minimum(begin + self.length, self.starts[-1])
        first = np.searchsorted(self.starts, begin, side="right") - 1
        counts = np.searchsorted(self.starts, end, side="left") - first
        document = _ranges(first, counts)
        row = np.repeat(np.arange(len(rows)), counts)
        start = np.maximum(self.starts[document], begin[row])
        stop = np.minimum(self.starts[document + 1], end[row])
        return Segments(row, start - begin[row], start, stop - start, stop == self.starts[document + 1])


def pack_whole(starts: np.ndarray, length: int, *, seed: int) -> WholeRows:
    """Documents at starts (n + 1,) -> rows of at most `length` tokens, as few documents cut as possible.

    A document longer than a row is cut into full rows and a rest; whole documents and rests go, the longest first, each
    into the row that it fills best; equally long ones in the order of `seed`. A rest of one token is left out: it has
    no target, and is the target of the row before. Source: Ding et al. 2024, "Fewer Truncations Improve Language
    Modeling", arXiv:2404.10830, section 3.
    """
    sizes = np.diff(starts)
    n_full, rest = sizes // length, sizes % length
    full_of = np.repeat(np.arange(len(sizes)), n_full)
    piece = _ranges(np.zeros_like(n_full), n_full)
    full_start = starts[full_of] + piece * length
    full_last = (piece == n_full[full_of] - 1) & (rest[full_of] == 0)

    items = np.flatnonzero(rest > 1)
    items = items[shuffled(len(items), seed)]
    items = items[np.argsort(-rest[items], kind="stable")]
    bins = _best_fit(rest[items], length)
    order = np.argsort(bins, kind="stable")
    items, bins = items[order], bins[order]

    n_bins = int(bins[-1]) + 1 if len(bins) else 0
    counts = np.concatenate([np.ones(len(full_of), dtype=np.int64), np.bincount(bins, minlength=n_bins)])
    return WholeRows(
        length,
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        start=np.concatenate([full_start, starts[items] + n_full[items] * length]),
        size=np.concatenate([np.full(len(full_of), length), rest[items]]).astype(np.int32),
        last=np.concatenate([full_last, np.ones(len(items), dtype=bool)]),
        n_cut=int((sizes > length).sum()),
    )


def _best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """The bin of each item (n,); sizes (n,) fall. Best fit, done for all items of one size at a time.

    The loop runs over distinct sizes and the distinct gaps that they fill (a few thousand turns), not over items.
    """
    bins = np.empty(len(sizes), dtype=np.int64)
    gaps: dict[int, list[np.ndarray]] = {}  # free space -> bins with just that much of it
    spaces: list[int] = []  # the keys of `gaps`, rising
    n_bins = at = 0
    for size, count in zip(*(values[::-1].tolist() for values in np.unique(sizes, return_counts=True)), strict=True):
        stop = at + count
        while at < stop:
            i = bisect_left(spaces, size)
            space = spaces.pop(i) if i < len(spaces) else capacity
            each = space // size  # a bin stays the best fit for this size until it has no room for one more
            if space in gaps:
                open_bins = np.concatenate(gaps.pop(space))
            else:
                open_bins = np.arange(n_bins, n_bins + -(-(stop - at) // each))
                n_bins += len(open_bins)
            taken = min(stop - at, len(open_bins) * each)
            bins[at : at + taken] = np.repeat(open_bins, each)[:taken]
            at += taken
            full, part = divmod(taken, each)
            left = [(space - each * size, open_bins[:full]), (space, open_bins[full + (part > 0) :])]
            if part:
                left.append((space - part * size, open_bins[full : full + 1]))
            for free, which in left:
                if free and len(which):
                    if free not in gaps:
                        gaps[free] = []
                        insort(spaces, free)
                    gaps[free].append(which)
    return bins


def fill(tokens: np.ndarray, segments: Segments, *, n_rows: int, length: int) -> dict[str, np.ndarray]:
    """Lay segments out as rows: `tokens` and `targets` (B, T) int64, `doc` (B, T) int32, `at` (B, T) int64.

    A target is the next token of the same document, in another row too; -100 after a document's last token and on
    padding. doc numbers the segments of a row from 0, at counts from each segment's beginning; both are -1 on padding.
    """
    size = segments.size
    total = int(size.sum())
    inner = np.arange(total) - np.repeat(np.cumsum(size) - size, size)
    source = np.repeat(segments.start, size) + inner
    following = tokens[np.minimum(source + 1, len(tokens) - 1)].astype(np.int64)
    following[(np.cumsum(size) - 1)[segments.last]] = NO_TARGET
    first_of_row = np.searchsorted(segments.row, segments.row, side="left")
    number = (np.arange(len(size)) - first_of_row).astype(np.int32)
    columns = {
        "tokens": (tokens[source].astype(np.int64), 0),
        "targets": (following, NO_TARGET),
        "doc": (np.repeat(number, size), -1),
        "at": (inner, -1),
    }
    if total == n_rows * length:
        return {name: values.reshape(n_rows, length) for name, (values, _) in columns.items()}
    cell = np.repeat(segments.row * length + segments.offset, size) + inner
    rows = {}
    for name, (values, padding) in columns.items():
        flat = np.full(n_rows * length, padding, dtype=values.dtype)
        flat[cell] = values
        rows[name] = flat.reshape(n_rows, length)
    return rows


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, … (counts[0] numbers), then the same from first[1], …"""
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(int(counts.sum()))
