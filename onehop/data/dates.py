"""Dates written out in many ways and as ISO 8601 has them, both ways round: a small translation with a right answer.

One in eleven days is held out: no pair names it unless held-out ones are asked for.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
EVERY = 11  # of so many days one is held out; no multiple of a week, a month or a year

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip


def _number(n: int) -> str:
    """0 to 99 in words."""
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def _ordinal(n: int) -> str:
    """1 to 31 in words."""
    if n in (20, 30):
        return f"{TENS[n // 10][:-1]}ieth"
    head, dash, last = _number(n).rpartition("-")
    return head + dash + ORDINALS.get(last, f"{last}th")


def _suffixed(n: int) -> str:
    """1st, 2nd, 3rd, 4th …"""
    return f"{n}{'th' if 10 < n < 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _year(n: int) -> str:
    """1900 to 2099 in words."""
    century, rest = divmod(n, 100)
    if n < 2010 and century == 20:
        return f"two thousand{f' and {_number(rest)}' if rest else ''}"
    return f"{_number(century)} {_number(rest) if rest > 9 else f'oh {_number(rest)}' if rest else 'hundred'}"


def _month(d: date) -> str:
    return MONTHS[d.month - 1]


STYLES: dict[str, Callable[[date], str]] = {
    "british": lambda d: f"{d.day} {_month(d)} {d.year}",
    "american": lambda d: f"{_month(d)} {d.day}, {d.year}",
    "short": lambda d: f"{d.day} {_month(d)[:3]} {d.year}",
    "capitals": lambda d: f"{_month(d)[:3].upper()} {d.day:02} {d.year}",
    "letter": lambda d: f"the {_suffixed(d.day)} of {_month(d)}, {d.year}",
    "diary": lambda d: f"{WEEKDAYS[d.weekday()]}, {_month(d)} {_suffixed(d.day)}, {d.year}",
    "dots": lambda d: f"{d.day}.{d.month}.{d.year}",
    "words": lambda d: f"the {_ordinal(d.day)} of {_month(d)} {_year(d.year)}",
}
ASKED = tuple(style for style in STYLES if style != "diary")  # a weekday has to be computed, not rewritten


def is_held_out(day: date) -> bool:
    """Whether no ordinary pair names this day."""
    return (day - FIRST).days % EVERY == 0


def pairs(seed: int, *, held_out: bool = False) -> Iterator[tuple[str, str]]:
    """Pairs without end, half of each direction; the same for the same seed.

    "5 March 1999" -> "1999-03-05", and "1999-03-05 as british" -> "5 March 1999". `held_out`: of the days of which
    there are no others.
    """
    rng = random.Random(f"onehop dates, {held_out}, {seed}")
    days = (LAST - FIRST).days + 1
    for n in itertools.count():
        day = FIRST + timedelta(days=rng.randrange(days))
        while is_held_out(day) != held_out:
            day = FIRST + timedelta(days=rng.randrange(days))
        if n % 2:
            style = rng.choice(ASKED)
            yield f"{day.isoformat()} as {style}", STYLES[style](day)
        else:
            yield STYLES[rng.choice(tuple(STYLES))](day), day.isoformat()
