"""Plain text with gaps: spans that an encoder-decoder fills in, and masked tokens that a model reads both ways for.

What is cut out of a row follows from the seed, the epoch and the row's number, so that a resumed run repeats it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from onehop.base.errors import ConfigError
from onehop.data.draws import shuffled, uniform
from onehop.data.loader import Batch, Loader
from onehop.data.pack import NO_TARGET
from onehop.data.pairs import Borders, Width, batch_of
from onehop.data.shards import Shards
from onehop.text.tokenizer import Tokenizer

MASK, SENTINEL = "<|mask|>", "<extra_id_{}>"  # of tokenizers that are trained here; the latter is also T5's
MASK_NAMES = (MASK, "[MASK]", "<mask>")
MOST_SENTINELS = 100


def sentinels(tokenizer: Tokenizer) -> list[int]:
    """The ids that stand for the spans that were cut out, first to last. Raises ConfigError where there are none."""
    found = [tokenizer.backend.token_to_id(SENTINEL.format(i)) for i in range(MOST_SENTINELS)]
    ids = [i for i in found if i is not None]
    if len(ids) < 2:
        raise ConfigError(f"task=spans needs the tokens {SENTINEL.format(0)}, … , which this tokenizer lacks.")
    return ids


def mask_id(tokenizer: Tokenizer) -> int:
    """The id that covers a token. Raises ConfigError where there is none."""
    found = [i for name in MASK_NAMES if (i := tokenizer.backend.token_to_id(name)) is not None]
    if not found:
        raise ConfigError(f"task=masked needs a mask token ({', '.join(MASK_NAMES)}), which this tokenizer lacks.")
    return found[0]


def span_counts(size: int, rate: float, mean_span: float) -> tuple[int, int]:
    """How many tokens are cut out of `size` (2 or more), and as how many spans."""
    n_out = min(max(round(size * rate), 1), size - 1)
    return n_out, min(max(round(n_out / mean_span), 1), n_out, size - n_out)


def cut_spans(
    row: np.ndarray, rate: float, mean_span: float, *, marks: Sequence[int], key: int
) -> tuple[np.ndarray, ...]:
    """A row (T,) -> what is left, a mark for each span that was cut out, and those spans, each after its mark.

    At its end the second has one more mark. Kept and cut stretches take turns, a kept one first; their lengths are
    random with the given sums. (In the authors' code a row always ends with a span, so that its end is always cut out;
    here the last stretch may be kept, or nothing.) Raffel et al. 2019, arXiv:1910.10683, section 3.1.4 and figure 2.
    """
    n_out, n_spans = span_counts(len(row), rate, mean_span)
    kept, cut = _lengths(len(row) - n_out + 1, n_spans + 1, key), _lengths(n_out, n_spans, key + 1)
    stretches = np.split(row, np.cumsum(np.stack([kept[:-1], cut], axis=1).ravel()))
    shown = [part for i in range(n_spans) for part in (stretches[2 * i], [marks[i]])]
    asked = [part for i in range(n_spans) for part in ([marks[i]], stretches[2 * i + 1])]
    return np.concatenate([*shown, stretches[-1]]), np.concatenate([*asked, [marks[n_spans]]])


def _lengths(total: int, n: int, key: int) -> np.ndarray:
    """`total` as a random sum of n numbers of at least 1: each way to cut it is as likely as any other."""
    cuts = np.sort(shuffled(total - 1, key)[: n - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)


@dataclass(frozen=True)
class Pieces:
    """Documents in pieces of at most `length` tokens: piece i is tokens[start[i] : start[i] + size[i]]."""

    start: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, shards: Shards, length: int) -> "Pieces":
        """The pieces of all documents; a rest of one token is left out."""
        sizes = np.diff(shards.starts)
        each = -(-sizes // length)
        document = np.repeat(np.arange(len(sizes)), each)
        number = np.arange(len(document)) - np.repeat(np.cumsum(each) - each, each)
        size = np.minimum(sizes[document] - number * length, length)
        long = size > 1
        return cls((shards.starts[document] + number * length)[long], size[long])


def span_rows(
    shards: Shards,
    pieces: Pieces,
    *,
    rate: float,
    mean_span: float,
    marks: Sequence[int],
    borders: Borders,
    seed: int,
    most: int,
) -> Callable[[np.ndarray, np.ndarray], Batch]:
    """What makes a batch of pieces with spans cut out: the rest is the source, the spans are the target.

    Padding makes neither longer than `most` tokens.
    """

    def make(rows: np.ndarray, epochs: np.ndarray) -> Batch:
        sources, said = [], []
        for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True):
            start = int(pieces.start[row])
            tokens = np.asarray(shards.tokens[start : start + int(pieces.size[row])], dtype=np.int64)
            shown, asked = cut_spans(tokens, rate, mean_span, marks=marks, key=_key(seed, epoch, row))
            sources.append(shown)
            said.append(np.append(asked, borders.end))
        return batch_of(sources, said, borders, most=most)

    return make


def span_widths(pieces: Pieces, rate: float, mean_span: float, *, most: int) -> tuple[Width, Width]:
    """How wide the sources and the targets of these pieces may become."""
    sizes = np.unique(pieces.size)
    n_out, n_spans = np.array([span_counts(int(size), rate, mean_span) for size in sizes]).T
    # Beside what is kept, a mark for each span; beside these, each behind its mark, a last mark and the end.
    return Width.of(sizes - n_out + n_spans, most), Width.of(n_out + n_spans + 2, most)


@dataclass(frozen=True)
class Cover:
    """How tokens are covered: a share `rate` is asked for, and shown as the mask, as any token, or as it is.

    ordinary (V',): the ids that are neither special nor without a token; only these are asked for, or drawn.
    """

    rate: float
    as_mask: float
    as_random: float
    mask: int
    ordinary: np.ndarray
    seed: int

    def __call__(self, batch: Batch, number: int) -> Batch:
        """Batch `number` (evaluation: below 0) with gaps: its targets are the tokens that are asked for."""
        tokens = batch.tokens.numpy()
        cells = np.arange(tokens.size)
        chance, kind, other = (uniform(cells, _key(self.seed, number, i)).reshape(tokens.shape) for i in range(3))
        asked = (chance < self.rate) & (batch.doc.numpy() >= 0) & np.isin(tokens, self.ordinary)
        drawn = self.ordinary[(other * len(self.ordinary)).astype(np.int64)]
        shown = np.where(kind < self.as_mask, self.mask, np.where(kind < self.as_mask + self.as_random, drawn, tokens))
        targets = np.where(asked, tokens, NO_TARGET)
        return replace(
            batch,
            tokens=torch.from_numpy(np.where(asked, shown, tokens)),
            targets=torch.from_numpy(targets),
            n_targets=int(asked.sum()),
        )


def ordinary_ids(tokenizer: Tokenizer) -> np.ndarray:
    """The ids of tokens that are not control tokens."""
    ids = tokenizer.backend.get_vocab(with_added_tokens=True).values()
    return np.array(sorted(set(ids) - tokenizer.special_ids), dtype=np.int64)


class CoveredLoader:
    """The batches of a Loader, each with its own gaps."""

    def __init__(self, loader: Loader, cover: Cover):
        self.loader, self.cover = loader, cover

    @property
    def n_rows(self) -> int | None:
        """Rows in an epoch."""
        return self.loader.n_rows

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batch number `start` and all that follow; no batch before it is made."""
        for number, batch in enumerate(self.loader.batches(start), start=start):
            yield self.cover(batch, number)

    def batch(self, number: int) -> Batch:
        """Batch `number` (from 0) of the endless sequence."""
        return self.cover(self.loader.batch(number), number)

    def summary(self) -> str:
        """What the packing did, in one line."""
        return self.loader.summary()


def _key(seed: int, epoch: int, number: int) -> int:
    """One number for three; even, so that its successor is free."""
    return 2 * ((seed + 1) * 0x9E3779B97F4A7C15 + (epoch + 2) * 0xBF58476D1CE4E5B9 + number * 0x94D049BB133111EB)
