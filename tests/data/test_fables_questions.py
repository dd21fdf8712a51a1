"""Questions about fables, answered here from the text alone, by rules written out independently of the grammar."""

import itertools
import random
import re

import pytest

from onehop.base.errors import ConfigError, DataError
from onehop.data import fables
from onehop.data.fables import words
from onehop.data.fables.grammar import ASKED
from onehop.data.fables.questions import KINDS, Question
from onehop.data.fables.tale import grammar

SAMPLE = list(itertools.islice(fables.stories(11), 3000))
CLAIM = re.compile(r"\b[Tt]he (\w+) (didn't|couldn't)([\w ']*) the (\w+)([\w ']*) because it was too (\w+)\.")

# For each verb, flaws of the first thing that is named and of the second.
RULES = {
    "didn't fit in": ("big large wide", "small little narrow"),
    "couldn't hold": ("small little narrow", "big large wide"),
    "didn't stay on": ("heavy massive huge", "weak frail shaky"),
    "couldn't carry": ("weak frail shaky", "heavy massive huge"),
    "didn't reach": ("short stubby small", "high far tall"),
    "couldn't be touched with": ("high far tall", "short stubby small"),
    "didn't cut": ("blunt dull rusty", "hard tough firm"),
    "couldn't be sliced with": ("hard tough firm", "blunt dull rusty"),
    "didn't go through": ("wide tall bulky", "narrow low tight"),
    "couldn't let": ("narrow low tight", "wide tall bulky"),
}


def claim(text: str) -> tuple[str, str, str, str]:
    """Verb, the two things in the order of the sentence, and the flaw."""
    ((one, verb, rest, other, _, flaw),) = CLAIM.findall(text)
    return verb + rest, one, other, flaw


def told_spots(text: str) -> dict[str, list[str]]:
    """Each thing that was left somewhere, and where, first to last."""
    spot = r"((?:in|on|under|behind|by) the \w+)"
    left = rf"(?:{'|'.join(words.KEEPING)}) (?:her|his) (?:{'|'.join(words.LOOKS)}) (\w+) {spot}"
    moved = rf"(?:{'|'.join(words.THEFTS)}) the (\w+) {spot}\."
    moves = re.findall(f"{left}|{moved}", text)
    spots: dict[str, list[str]] = {}
    for thing, spot, taken, then in moves:
        spots.setdefault(thing or taken, []).append(spot or then)
    return spots


@pytest.mark.parametrize("held_out", [False, True])
def test_what_it_was_follows_from_the_verb_and_the_flaw(held_out: bool) -> None:
    for question in fables.questions(0, 500, kind="it", held_out=held_out):
        verb, one, other, flaw = claim(question.prompt)
        culprits = [thing for thing, flaws in zip((one, other), RULES[verb], strict=True) if flaw in flaws.split()]
        assert question.answer == f" The {culprits[0]}."
        assert question.rivals == (f" The {other if culprits[0] == one else one}.",)
        assert question.prompt.endswith(f" What was too {flaw}?")


@pytest.mark.parametrize("held_out", [False, True])
def test_a_thing_is_where_it_was_left_last(held_out: bool) -> None:
    for question in fables.questions(0, 500, kind="where", held_out=held_out):
        spots = told_spots(question.prompt)
        (thing,) = re.findall(r"Where was the (\w+) now\?$", question.prompt)
        assert question.answer.strip(" .").lower() == spots[thing][-1]
        rivals = {spot for where in spots.values() for spot in where} - {spots[thing][-1]}
        assert {rival.strip(" .").lower() for rival in question.rivals} == rivals
        assert len(question.rivals) == 2


def test_the_thing_named_first_is_the_answer_half_of_the_time_for_every_verb_and_the_last_spot_too() -> None:
    questions = fables.questions(1, 4000, kind="it")
    first = {verb: [0, 0] for verb in RULES}
    for question in questions:
        verb, one, _, _ = claim(question.prompt)
        first[verb][question.answer == f" The {one}."] += 1
    for counts in first.values():  # about 400 each: 4 standard errors of a fair coin are 0.1
        assert 0.4 < counts[1] / sum(counts) < 0.6
    where = fables.questions(1, 2000, kind="where")
    last = [re.findall(r"(?:in|on|under|behind|by) the \w+(?=\. Where was)", question.prompt)[-1] for question in where]
    share = sum(f" {spot.capitalize()}." == q.answer for spot, q in zip(last, where, strict=True)) / len(where)
    assert 0.455 < share < 0.545  # 4 standard errors of 2000 fair coins


def test_held_out_pairs_are_asked_about_and_never_told() -> None:
    told = {frozenset(claim(text)[1:3]) for text in SAMPLE}
    asked = {frozenset(claim(question.prompt)[1:3]) for question in fables.questions(2, 3000, kind="it")}
    assert not told & asked
    assert frozenset(("trophy", "suitcase")) in asked
    assert len(told) == 5 * 80
    assert len(asked) == 5 * 20


def test_things_that_are_never_told_of_together_are_asked_about_in_where_questions() -> None:
    """A held-out place would be rightly improbable; a held-out pair of things leaves every place as likely as ever."""
    told = {frozenset(told_spots(text)) for text in SAMPLE}
    asked = {frozenset(told_spots(question.prompt)) for question in fables.questions(2, 3000, kind="where")}
    assert not told & asked
    assert len(told) == 80
    assert len(asked) == 20
    spots = {(thing, spot) for text in SAMPLE for thing, where in told_spots(text).items() for spot in where}
    assert len(spots) == 20 * 12  # every thing is told of in every place


def test_questions_that_are_not_held_out_continue_to_fables_of_the_grammar() -> None:
    """The prompt and the right answer are how some fable begins; with a rival's answer they are not."""
    tale = grammar()
    rng = random.Random(4)
    for kind in KINDS:
        text, values = tale.write(rng, until=KINDS.get(kind).marks)
        right, *wrong = KINDS.get(kind).candidates(values)
        assert values[ASKED] in KINDS.get(kind).marks
        for answer, fits in [(right, True), *((rival, False) for rival in wrong)]:
            with pytest.raises(DataError) as refusal:
                fables.log_prob(text + answer)
            assert ("'' cannot follow" in str(refusal.value)) == fits


def test_questions_repeat_with_their_seed_and_differ_without() -> None:
    assert fables.questions(5, 20, kind="it") == fables.questions(5, 20, kind="it")
    assert fables.questions(5, 20, kind="it") != fables.questions(6, 20, kind="it")
    assert all(isinstance(question, Question) for question in fables.questions(5, 3, kind="where", held_out=False))


def test_an_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"question kind 'were' does not exist\. Did you mean where\?"):
        fables.questions(0, 1, kind="were")
