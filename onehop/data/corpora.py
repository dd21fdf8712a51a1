"""The corpora that come with onehop: no network, no files, no one else's copyright."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from onehop.base.choices import Choices
from onehop.data import fables, stdlib


class Documents(Protocol):
    """Texts in an order that `seed` decides, at most `limit` of them where it is given."""

    def __call__(self, seed: int, *, limit: int | None = None) -> Iterator[str]: ...


class Questions(Protocol):
    """`n` questions of a kind; `held_out`: about combinations that no document contains."""

    def __call__(self, seed: int, n: int, *, kind: str, held_out: bool = True) -> list[fables.Question]: ...


@dataclass(frozen=True)
class Corpus:
    """A built-in source of documents, and what is known about it: exact entropy, log-probability, questions.

    `entropy` gives nats per document, its end included; `log_prob` nats of one document. An `endless` corpus has as
    many documents as one asks for, so whoever stores it needs a limit (`data.n_documents`).
    """

    name: str
    description: str
    documents: Documents
    endless: bool = False
    entropy: Callable[[], float] | None = None
    log_prob: Callable[[str], float] | None = None
    questions: Questions | None = None


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
        )
    },
)
