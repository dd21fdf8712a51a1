"""The sources of a text with their split: what a tokenizer is trained on, and what is encoded for either side."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from onehop.base.errors import DataError, OnehopError
from onehop.config.data import TextConfig
from onehop.data.draws import draws
from onehop.data.shards import SIDES, write_shards
from onehop.data.sources import Progress, Source
from onehop.data.split import Split
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.cuts import LONG, pieces_of
from onehop.text.tokenizer import Tokenizer

HEAD = 1 << 26  # characters at the beginning of a streamed text, for its tokenizer and its validation side
_PER_TOKEN = 20_000  # bytes for each token of a BPE: from more text, it is trained on a sample of that size

_KEYS = re.compile(rf"\bdata\.({'|'.join(TextConfig.model_fields)})\b")  # that each source of a mixture has


@dataclass(frozen=True)
class Sided:
    """A source, named ("" for the only one), and which of its documents are for validation.

    n_head: the documents at its beginning that are looked at and split before training, where it is streamed; else 0.
    """

    name: str
    weight: float
    source: Source
    split: Split
    n_head: int = 0

    @classmethod
    def of(cls, name: str, weight: float, source: Source, *, fraction: float, seed: int, stream: bool) -> "Sided":
        """The source with its split, for which its beginning is read."""
        n_head = _length_of_head(source) if stream else 0
        if source.dropped and next(iter(source), None) is None:
            raise DataError(
                f"data.mixture.{name}: each of its documents is equal to one of an earlier source, and "
                "data.deduplicate=true drops them. Leave one of the two out."
            )
        try:
            split = Split.of(islice(source, n_head or None), fraction=fraction, seed=seed)
        except DataError as error:
            raise (error if not name else of_one_source(name, error)) from error
        return cls(name, weight, source, split, n_head)

    def documents(self) -> Iterator[tuple[str, bool]]:
        """(document, whether it is for validation), of the head only where there is one."""
        return self.split.apply(islice(self.source, self.n_head or None))

    def write(self, folder: Path, tokenizer: Tokenizer, *, progress: Progress | None) -> None:
        """Encode both sides into `folder`, or the validation side alone where the rest is streamed."""
        folder.mkdir(exist_ok=True)
        sides = SIDES[1:] if self.n_head else SIDES
        write_shards(folder, self.documents(), tokenizer, sides=sides, progress=progress)


def of_one_source(name: str, error: OnehopError) -> DataError:
    """What is wrong with a source of a mixture: named, with the keys that it is told by there."""
    told = _KEYS.sub(rf"data.mixture.{name}.\1", str(error))
    return DataError(f"data.mixture.{name}: {told}")


def _length_of_head(source: Source) -> int:
    """How many documents make the head: two or more, where there are so many."""
    size = n = 0
    for n, document in enumerate(source, start=1):
        size += len(document)
        if size >= HEAD and n > 1:
            break
    return n


def train_tokenizer(
    kind: str, parts: Sequence[Sided], *, vocab_size: int, progress: Progress | None = None
) -> Tokenizer:
    """A tokenizer of `kind` from the training sides; of a large mixture, from each source by its weight."""
    if kind == "characters":
        return train_characters(chain.from_iterable(part.source for part in parts))
    whole = sum(part.weight for part in parts)
    text = chain.from_iterable(
        _training_text(part, n_bytes=_PER_TOKEN * vocab_size * part.weight / whole, progress=progress) for part in parts
    )
    return train_bpe(_then(text, "tokens to find in the text", vocab_size, progress), vocab_size=vocab_size)


def _then(text: Iterator[str], what: str, number: int, progress: Progress | None) -> Iterator[str]:
    """The text, and when it has been read, word of what follows."""
    yield from text
    if progress is not None:
        progress(what, number, None)


def _training_text(part: Sided, *, n_bytes: float, progress: Progress | None) -> Iterator[str]:
    """About so much of the training side, never nothing: documents, long ones in pieces, from all over the text."""
    there = min(part.source.n_bytes, HEAD) if part.n_head else part.source.n_bytes
    share = min(1.0, n_bytes / max(there, 1))
    lots = chain([0.0], draws(part.split.seed + 1))
    for n, (document, is_validation) in enumerate(part.documents(), start=1):
        if not is_validation:
            yield from (piece for piece in pieces_of(document, LONG) if next(lots) < share)
        if progress is not None and n % 1000 == 0:
            progress("documents read for the tokenizer", n, None)
