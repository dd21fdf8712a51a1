"""Which documents are kept for validation: decided by number and seed, so that it is the same in every run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onehop.base.errors import DataError
from onehop.data.draws import draws, uniform

_MANY = 1 << 10  # documents looked at to see whether both sides of the split get one


@dataclass(frozen=True)
class Split:
    """Says for each document whether it is for validation.

    `fraction` of all documents are, chosen by a hash of their number and `seed`; where a small corpus would leave one
    side empty, the document nearest to the border moves. A single document is cut by characters: the first
    1 - fraction is for training, the rest for validation (90 % and 10 % of a one-file corpus, as nanoGPT does).
    """

    fraction: float
    seed: int
    moved: int | None = None  # the document that would otherwise leave one side empty
    single: bool = False

    @classmethod
    def of(cls, documents: Iterable[str], *, fraction: float, seed: int) -> "Split":
        """The split of these documents. Refuses no documents, and a single one of fewer than two characters."""
        if not 0 < fraction < 1:
            raise DataError(f"data.validation={fraction} must lie between 0 and 1, for example 0.05.")
        first, n = "", 0
        for n, document in enumerate(documents, start=1):
            first = first or document
            if n == _MANY:
                break
        if n == 0:
            raise DataError(
                "there is no text in the corpus: every document is empty. Give data.files with text in them."
            )
        if n == 1:
            if len(first) < 2:
                raise DataError("the corpus is one character long. Give data.files with more text in them.")
            return cls(fraction, seed, single=True)
        return cls.among(n, fraction=fraction, seed=seed) if n < _MANY else cls(fraction, seed)

    @classmethod
    def among(cls, n: int, *, fraction: float, seed: int) -> "Split":
        """The split of `n` documents, two or more, of which each side gets one at least."""
        at = uniform(np.arange(n), seed)
        chosen = at < fraction
        moved = None
        if not chosen.any():
            moved = int(at.argmin())
        elif chosen.all():
            moved = int(at.argmax())
        return cls(fraction, seed, moved=moved)

    def chosen(self, n: int) -> np.ndarray:
        """Which of the first `n` documents are for validation, (n,) bool; not for a single one, which is cut."""
        numbers = np.arange(n)
        return (uniform(numbers, self.seed) < self.fraction) ^ (numbers == self.moved)

    def cut(self, document: str) -> tuple[str, str]:
        """A single document's two sides."""
        cut = min(max(int(len(document) * (1 - self.fraction)), 1), len(document) - 1)
        return document[:cut], document[cut:]

    def apply(self, documents: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """(document, whether it is for validation), in order; a single document comes as two."""
        for number, (document, at) in enumerate(zip(documents, draws(self.seed), strict=False)):
            if self.single:
                yield from zip(self.cut(document), (False, True), strict=True)
            else:
                yield document, (at < self.fraction) ^ (number == self.moved)
