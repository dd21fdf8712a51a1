"""The corpora that come with onehop: no network, no files, no one else's copyright."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from onehop.base.choices import Choices
from onehop.data import dates, fables, stdlib


class Documents(Protocol):
    """Texts in an order that `seed` decides, at most `limit` of them where it is given."""

    def __call__(self, seed: int, *, limit: int | None = None) -> Iterator[str]: ...


class Questions(Protocol):
    """`n` questions of a kind; `held_out`: about combinations that no document contains."""

    def __call__(self, seed: int, n: int, *, kind: str, held_out: bool = True) -> list[fables.Question]: ...


class Pairs(Protocol):
    """Sources and targets, in an order that `seed` decides; `held_out`: of the kind that no other ones are of."""

    def __call__(self, seed: int, *, held_out: bool = False) -> Iterator[tuple[str, str]]: ...


@dataclass(frozen=True)
class Corpus:
    """A built-in source of documents, and what is known about it: exact entropy, log-probability, questions.

    `entropy` gives nats per document, its end included; `log_prob` nats of one document. An `endless` corpus has as
    many documents as one asks for, so whoever stores it needs a limit (`data.n_documents`). One with `pairs` can be
    learned as such (task=pairs); its documents are the pairs as lines of two columns.
    """

    name: str
    description: str
    documents: Documents
    endless: bool = False
    entropy: Callable[[], float] | None = None
    log_prob: Callable[[str], float] | None = None
    questions: Questions | None = None
    pairs: Pairs | None = None


def _dates(seed: int, *, limit: int | None = None) -> Iterator[str]:
    return itertools.islice((f"{source}\t{target}" for source, target in dates.pairs(seed)), limit)


def _fables(seed: int, *, limit: int | None = None) -> Iterator[str]:
    return itertools.islice(fables.stories(seed), limit)


CORPORA = Choices(
    "corpus",
    {
        corpus.name: corpus
        for corpus in (
            Corpus(
                "fables",
                "short fables from a grammar of known entropy, with questions about who 'it' is and where things are",
                _fables,
                endless=True,
                entropy=fables.entropy,
                log_prob=fables.log_prob,
                questions=fables.questions,
            ),
            Corpus(
                "python-stdlib",
                "the running Python's own standard library, one file a document, without its tests",
                stdlib.documents,
            ),
            Corpus(
                "dates",
                "pairs (task=pairs): dates written out in many ways, as ISO dates, and the other way round",
                _dates,
                endless=True,
                pairs=dates.pairs,
            ),
        )
    },
)
