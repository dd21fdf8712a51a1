"""Short fables from a grammar written for onehop: endless, seeded, with a known entropy and questions about them.

The exact entropy says what the best possible validation loss is; the questions, about combinations of things that no
sampled fable contains, say whether a model has understood who "it" is and where a thing is now.
"""

import functools
import random
import re
from collections.abc import Iterator

from onehop.data.fables import questions as _questions
from onehop.data.fables.entropy import exact_entropy
from onehop.data.fables.grammar import Grammar
from onehop.data.fables.questions import Question
from onehop.data.fables.tale import grammar
from onehop.data.fables.words import BOYS, FUNCTION_WORDS, GIRLS

__all__ = ["Question", "content_words", "entropy", "log_prob", "questions", "stories", "story"]


def story(rng: random.Random) -> str:
    """One fable of 5 to 15 sentences on one line."""
    return _fables().write(rng)[0]


def stories(seed: int) -> Iterator[str]:
    """Fables without end; the same for the same seed, unrelated for another (on every platform and Python version)."""
    rng = _rng("stories", seed)
    while True:
        yield story(rng)


@functools.cache
def entropy() -> float:
    """Exact entropy of one fable, its end included, in nats: no model's mean loss per fable can be below it."""
    return exact_entropy(_fables())


def log_prob(text: str) -> float:
    """Log-probability of a whole fable in nats. Refuses (DataError) text that is never sampled."""
    return _fables().read(text)[0]


def questions(seed: int, n: int, *, kind: str, held_out: bool = True) -> list[Question]:
    """`n` questions of the kind "it" or "where", each about a fable of its own; `held_out`: about unseen combinations.

    "it" has two candidates, the right one named first as often as last, by either sentence form; "where" has three.
    """
    rng = _rng(f"questions {kind} {held_out}", seed)
    return [_questions.ask(_fables(), rng, kind=kind, held_out=held_out) for _ in range(n)]


def content_words() -> frozenset[str]:
    """The words of the fables in lower case, without names and without function words such as "the" and "she"."""
    words = {word for text in _fables().literals() for word in re.findall(r"[A-Za-z]+(?:'[a-z]+)?", text)}
    return frozenset(word.lower() for word in words - set(GIRLS + BOYS)) - set(FUNCTION_WORDS)


@functools.cache
def _fables() -> Grammar:
    return grammar()


def _rng(purpose: str, seed: int) -> random.Random:
    """Seeded by a text, through SHA-512 in `random`: neighbouring seeds and other purposes give unrelated streams."""
    return random.Random(f"onehop fables, {purpose}, {seed}")
