"""Questions about fables with the right answer and the wrong ones, also about combinations that are never sampled."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from onehop.base.choices import Choices
from onehop.data.fables.grammar import ASKED, Grammar, Values
from onehop.data.fables.tale import culprit_and_other, spots
from onehop.data.fables.troubles import TROUBLES


@dataclass(frozen=True)
class Question:
    """A fable up to a question mark, and texts that may follow it: each begins with a space and ends with a full stop.

    A model has understood if it finds `answer` more probable after `prompt` than each of `rivals`.
    """

    prompt: str
    answer: str
    rivals: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """The marks where this is asked, the candidates there (right one first), and the blanks that take unseen words."""

    marks: frozenset[str]
    candidates: Callable[[Values], tuple[str, ...]]
    unseen: frozenset[str]


KINDS = Choices(
    "question kind",
    {
        "it": Kind(
            frozenset(("it",)),
            lambda values: tuple(f" The {thing}." for thing in culprit_and_other(values)),
            frozenset(f"{trouble.name}_{role}" for trouble in TROUBLES for role in "xy"),
        ),
        "where": Kind(
            frozenset(("where_toy", "where_tool")),
            lambda values: tuple(f" {spot}." for spot in spots(values, values[ASKED].removeprefix("where_"))),
            frozenset(("toy", "tool")),
        ),
    },
)


def ask(grammar: Grammar, rng: random.Random, *, kind: str, held_out: bool) -> Question:
    """A question of this kind about a new fable."""
    row = KINDS.get(kind)
    prompt, values = grammar.write(rng, until=row.marks, unseen=row.unseen if held_out else frozenset())
    answer, *rivals = row.candidates(values)
    return Question(prompt, answer, tuple(rivals))
