"""The grammar engine on small grammars whose texts and probabilities are written out by hand."""

import math
import random
from collections.abc import Iterator

import pytest

from onehop.base.errors import DataError
from onehop.data.fables.entropy import exact_entropy
from onehop.data.fables.grammar import Cell, Fork, Grammar, Slot, Values

# Three drinks for "ann", two for "bob" (bob and milk is held out), then one of two endings, one with a further choice.
PEOPLE = Slot(("ann", "bob"))
DRINKS = Slot(("tea", "milk", "ale"), ("who",), held_out=lambda drink, who: (drink, who) == ("milk", "bob"))
ENDINGS = Fork((". The end.", ", {and_who} with {a +dish}."))
TINY = Grammar(
    ("{+who} drinks {+drink}", ENDINGS),
    {"who": PEOPLE, "drink": DRINKS, "dish": Slot(("egg", "pie", "fig", "oat"))},
    {"and_who": lambda values: values["who"].upper()},
)


def every_text(grammar: Grammar, cell: Cell | None = None, values: Values | None = None) -> Iterator[tuple[str, float]]:
    """All texts with their probabilities, by walking every option: the brute force that the recursion saves."""
    cell = grammar.start if cell is None else cell
    values = values or {}
    written, choice = grammar.run(cell, values)
    if choice is None:
        yield written, 1.0
        return
    if choice.kind == "fork":
        following = [("", way, values) for way in choice.ways]
    else:
        article = {"egg": "an ", "oat": "an ", "pie": "a ", "fig": "a "}
        following = []
        for word in choice.slot.options(values):
            text = article[word] + word if choice.article else word
            following.append((text, choice.after, values | {choice.text: word}))
    for text, after, then in following:
        tails = every_text(grammar, after, then) if after is not None else [("", 1.0)]
        for tail, probability in tails:
            yield written + text + tail, probability / len(following)


def test_the_tiny_grammar_writes_exactly_the_texts_counted_by_hand() -> None:
    texts = dict(every_text(TINY))
    assert len(texts) == 5 * (1 + 4)
    assert texts["ann drinks milk. The end."] == pytest.approx(1 / 2 / 3 / 2, abs=1e-15)
    assert texts["bob drinks ale, BOB with an egg."] == pytest.approx(1 / 2 / 2 / 2 / 4, abs=1e-15)
    assert "bob drinks milk. The end." not in texts
    assert math.fsum(texts.values()) == pytest.approx(1, abs=1e-12)


def test_the_recursion_gives_the_entropy_of_all_texts_to_rounding() -> None:
    by_hand = math.log(2) + (math.log(3) + math.log(2)) / 2 + math.log(2) + math.log(4) / 2
    brute = -math.fsum(p * math.log(p) for _, p in every_text(TINY))
    assert exact_entropy(TINY) == pytest.approx(by_hand, abs=1e-12)  # sums of a few logs in float64
    assert exact_entropy(TINY) == pytest.approx(brute, abs=1e-12)


def test_the_recursion_follows_values_through_forks_and_later_choices() -> None:
    """Options that depend on two earlier blanks, one of them filled in only one of the ways."""
    letters = ("a", "b", "c", "d")
    slots = {
        "x": Slot(letters[:3]),
        "y": Slot(letters, ("x",), fits=lambda word, x: word > (x or "a")),
        "z": Slot(letters, ("x", "y"), fits=lambda word, x, y: word not in (x, y)),
    }
    grammar = Grammar((Fork(("1{+x}", "2")), Fork(("-", "+{?it}")), Fork(("3{+y}", "4")), "{+z}!"), slots, {})
    texts = list(every_text(grammar))
    assert len({text for text, _ in texts}) == len(texts)
    assert exact_entropy(grammar) == pytest.approx(-math.fsum(p * math.log(p) for _, p in texts), abs=1e-12)
    for text, p in texts:
        assert grammar.read(text)[0] == pytest.approx(math.log(p), abs=1e-12)


def test_reading_undoes_writing() -> None:
    rng = random.Random(0)
    for _ in range(200):
        text, values = TINY.write(rng)
        log_prob, read = TINY.read(text)
        assert read == values
        assert math.exp(log_prob) == pytest.approx(dict(every_text(TINY))[text], abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ann",
        "ann drinks milk",
        "ann drinks milk. The end. ",
        "bob drinks milk. The end.",
        "ann drinks tea, BOB with an egg.",
    ],
    ids=["empty", "too short", "no ending", "too long", "held out", "contradicts itself"],
)
def test_text_that_is_never_written_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a text of this grammar"):
        TINY.read(text)


def test_a_choice_that_writes_nothing_is_read_with_the_next_one() -> None:
    grammar = Grammar((Fork((("", Fork(("a", "b"))), Fork(("c", "d", "e")))), "."), {}, {})
    probabilities = {text: math.exp(grammar.read(f"{text}.")[0]) for text in "abcde"}
    assert probabilities == pytest.approx({"a": 1 / 4, "b": 1 / 4, "c": 1 / 6, "d": 1 / 6, "e": 1 / 6}, abs=1e-12)


def test_a_text_can_be_cut_at_a_mark_and_use_only_what_is_held_out() -> None:
    grammar = Grammar(
        "{+who} drinks {+drink}.{?ask} Cheers.", {"who": Slot(("bob",)), "drink": DRINKS}, {}
    )  # fmt: skip
    text, values = grammar.write(random.Random(0), until=frozenset(("ask",)), unseen=frozenset(("drink",)))
    assert text == "bob drinks milk."
    assert values == {"who": "bob", "drink": "milk", "?": "ask"}
