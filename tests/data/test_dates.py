"""The corpus of dates: right in every style, the same for a seed, and never a held-out day among the others."""

import itertools
import re
from datetime import date, timedelta

import pytest

from onehop.data import dates
from onehop.data.corpora import CORPORA

EVERY_DAY = [dates.FIRST + timedelta(days=n) for n in range((dates.LAST - dates.FIRST).days + 1)]


@pytest.mark.parametrize(
    ("day", "style", "text"),
    [
        (date(1999, 3, 5), "british", "5 March 1999"),
        (date(1999, 3, 5), "american", "March 5, 1999"),
        (date(2024, 9, 12), "short", "12 Sep 2024"),
        (date(2024, 9, 2), "capitals", "SEP 02 2024"),
        (date(2011, 11, 11), "letter", "the 11th of November, 2011"),
        (date(2011, 11, 23), "letter", "the 23rd of November, 2011"),
        (date(2000, 1, 1), "diary", "Saturday, January 1st, 2000"),
        (date(1950, 12, 31), "dots", "31.12.1950"),
        (date(1900, 5, 20), "words", "the twentieth of May nineteen hundred"),
        (date(1907, 5, 31), "words", "the thirty-first of May nineteen oh seven"),
        (date(2000, 5, 30), "words", "the thirtieth of May two thousand"),
        (date(2009, 5, 8), "words", "the eighth of May two thousand and nine"),
        (date(2012, 5, 12), "words", "the twelfth of May twenty twelve"),
        (date(2099, 5, 9), "words", "the ninth of May twenty ninety-nine"),
    ],
)
def test_a_day_as_people_write_it(day, style, text):
    assert dates.STYLES[style](day) == text


@pytest.mark.parametrize("style", dates.STYLES)
def test_no_two_days_are_written_alike(style):
    """So every date has one right answer."""
    written = [dates.STYLES[style](day) for day in EVERY_DAY[::3]]
    assert len(set(written)) == len(written)


def test_no_pair_names_a_held_out_day_and_every_held_out_pair_does():
    for held_out in (False, True):
        found = list(itertools.islice(dates.pairs(0, held_out=held_out), 4000))
        days = [date.fromisoformat(re.search(r"\d{4}-\d\d-\d\d", f"{s} {t}")[0]) for s, t in found]
        assert {dates.is_held_out(day) for day in days} == {held_out}
        assert len(set(days)) > (1500 if held_out else 3000)
    assert sum(map(dates.is_held_out, EVERY_DAY)) == pytest.approx(len(EVERY_DAY) / dates.EVERY, abs=1)


def test_half_of_the_pairs_go_each_way_and_every_way_of_writing_is_asked_for():
    found = list(itertools.islice(dates.pairs(1), 1000))
    to_iso, from_iso = found[::2], found[1::2]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", target) for _, target in to_iso)
    asked = {re.fullmatch(r"\d{4}-\d\d-\d\d as (\w+)", source)[1] for source, _ in from_iso}
    assert asked == set(dates.ASKED)
    for source, target in from_iso:
        day, _, style = source.partition(" as ")
        assert target == dates.STYLES[style](date.fromisoformat(day))


def test_a_seed_repeats_the_pairs_which_are_the_corpus_documents():
    first, other = (list(itertools.islice(dates.pairs(seed), 20)) for seed in (3, 4))
    assert first != other
    corpus = CORPORA.get("dates")
    assert list(itertools.islice(corpus.pairs(3), 20)) == first
    assert list(corpus.documents(3, limit=20)) == [f"{source}\t{target}" for source, target in first]
