"""A grammar that writes text from left to right: blanks that take words, forks that take one of several ways on.

Every choice is uniform over what is allowed there, and shows at once: of the texts that two options write before the
next choice, neither begins with the other (a prefix code; Cover and Thomas, Elements of Information Theory, section
5.1). So the text alone tells each choice: `read` undoes `write`, and the entropy of the text is that of the choices.

Templates are Python strings: `{+cup}` picks a word for the blank `cup`, `{cup}` mentions it again, `{a +cup}` and
`{a cup}` put "a" or "an" before it, and `{?it}` marks the end of a question of the kind `it`. A tuple of parts is a
sequence; `Fork((x, y))` is a choice.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from onehop.base.errors import DataError

Values = dict[str, str]  # blank -> the word it took
PIECE = re.compile(r"\{(a )?([+?]?)(\w+)\}|([^{}]+)")
ASKED = "?"  # the key, among the values, of the mark at which a text was ended
VOWELS = tuple("aeiou")


@dataclass(frozen=True)
class Slot:
    """What a blank may take: `words`, less those that `fits` refuses, less those that are `held_out`.

    Both are called with a word and the values of the earlier blanks `given` (None where one is not filled yet).
    """

    words: tuple[str, ...]
    given: tuple[str, ...] = ()
    fits: Callable[..., bool] | None = None
    held_out: Callable[..., bool] | None = None

    def options(self, values: Mapping[str, str], *, held_out: bool = False) -> tuple[str, ...]:
        """The words allowed after `values`; with `held_out`, those otherwise kept back.

        While a blank that decides is still open, nothing is kept back, and all words are allowed in both cases.
        """
        seen = [values.get(name) for name in self.given]
        fitting = tuple(word for word in self.words if self.fits is None or self.fits(word, *seen))
        if self.held_out is None:
            return fitting
        kept_back = tuple(word for word in fitting if self.held_out(word, *seen))
        if not held_out:
            return tuple(word for word in fitting if word not in kept_back)
        assert kept_back or None in seen, f"nothing is held out for {self.given} = {seen}"
        return kept_back or fitting


@dataclass(frozen=True)
class Fork:
    """A uniform choice between ways to go on."""

    ways: tuple["Part", ...]


Part = str | tuple["Part", ...] | Fork


@dataclass(eq=False, slots=True)
class Cell:
    """One step of a compiled grammar and what comes after it (None at the end of the text).

    kind: "literal" writes `text`; "pick" fills the blank `text`; "mention" writes what it took; "mark" writes nothing;
    "fork" goes on with one of `ways`.
    """

    kind: str
    text: str = ""
    after: "Cell | None" = None
    article: bool = False
    slot: Slot = Slot(())
    ways: tuple["Cell", ...] = ()
    memo: dict[tuple[str | None, ...], tuple[str, ...]] = field(default_factory=dict)

    def options(self, values: Values) -> tuple[str, ...]:
        """The words that a pick may take (remembered: a blank meets the same few cases again and again)."""
        key = tuple([values.get(name) for name in self.slot.given])
        if key not in self.memo:
            self.memo[key] = self.slot.options(values)
        return self.memo[key]


def with_article(word: str) -> str:
    """A fox, an owl: by the first letter, which is right for every word that we list (a test reads them)."""
    return f"an {word}" if word.startswith(VOWELS) else f"a {word}"


class Grammar:
    """The language of `part`, with its blanks; `derived` names are functions of the values so far, such as "she"."""

    def __init__(self, part: Part, slots: Mapping[str, Slot], derived: Mapping[str, Callable[[Values], str]]):
        self.slots, self.derived = dict(slots), dict(derived)
        start = self._compile(part, None)
        assert start is not None, "a grammar has to write something"
        self.start: Cell = start

    def write(
        self, rng: random.Random, *, until: frozenset[str] = frozenset(), unseen: frozenset[str] = frozenset()
    ) -> tuple[str, Values]:
        """One text and its values.

        It ends at the first mark that is in `until`, whose name is then values[ASKED]. The blanks in `unseen` take
        held-out words only.
        """
        pieces: list[str] = []
        values: Values = {}
        cell: Cell | None = self.start
        while cell is not None:
            if cell.kind == "fork":
                cell = cell.ways[int(rng.random() * len(cell.ways))]
                continue
            if cell.kind == "pick":
                name = cell.text
                options = cell.slot.options(values, held_out=True) if name in unseen else cell.options(values)
                word = values[name] = options[int(rng.random() * len(options))]
                pieces.append(with_article(word) if cell.article else word)
            elif cell.kind == "mark":
                if cell.text in until:
                    values[ASKED] = cell.text
                    break
            else:
                pieces.append(cell.text if cell.kind == "literal" else self._mention(cell, values))
            cell = cell.after
        return "".join(pieces), values

    def read(self, text: str) -> tuple[float, Values]:
        """The log-probability of `text` in nats, and its values. Refuses text that the grammar cannot write."""
        values: Values = {}
        written, cell = self.run(self.start, values)
        at, log_prob = len(written), 0.0
        if not text.startswith(written):
            raise self._refusal(text, 0)
        while cell is not None:
            rest = text[at:]
            matches = [way for way in self.ways(cell, values, start=rest) if rest.startswith(way[0])]
            if len(matches) != 1:
                raise self._refusal(text, at)
            written, odds, cell, values = matches[0]
            at += len(written)
            log_prob -= math.log(odds)
        if at != len(text):
            raise self._refusal(text, at)
        return log_prob, values

    def literals(self) -> Iterator[str]:
        """Every literal and every word that the grammar can write (some more than once)."""
        for slot in self.slots.values():
            yield from slot.words
        seen: set[Cell] = set()
        left: list[Cell | None] = [self.start]
        while left:
            cell = left.pop()
            if cell is not None and cell not in seen:
                seen.add(cell)
                left += [cell.after, *cell.ways]
                if cell.kind == "literal":
                    yield cell.text

    def run(self, cell: Cell | None, values: Values) -> tuple[str, Cell | None]:
        """What is written from `cell` to the next choice, and that choice (None: the text ends first)."""
        pieces = []
        while cell is not None and cell.kind not in ("pick", "fork"):
            if cell.kind != "mark":
                pieces.append(cell.text if cell.kind == "literal" else self._mention(cell, values))
            cell = cell.after
        return "".join(pieces), cell

    def ways(
        self, cell: Cell, values: Values, *, start: str | None = None
    ) -> Iterator[tuple[str, int, Cell | None, Values]]:
        """The ways on from a choice: the text up to the next choice, one in how many, that choice, the values then.

        A choice that writes nothing before the next one is taken together with it. With `start`, words that do not
        begin it are passed over.
        """
        ways: list[tuple[str, Cell | None, Values]]
        if cell.kind == "fork":
            odds = len(cell.ways)
            ways = [("", way, values) for way in cell.ways]
        else:
            options = cell.options(values)
            odds = len(options)
            texts = [(with_article(word) if cell.article else word, word) for word in options]
            like = [row for row in texts if start is None or start.startswith(row[0])]
            ways = [(text, cell.after, values | {cell.text: word}) for text, word in like]
        for text, after, then in ways:
            more, choice = self.run(after, then)
            if text + more or choice is None:
                yield text + more, odds, choice, then
            else:
                yield from ((rest, odds * number, end, last) for rest, number, end, last in self.ways(choice, then))

    def _mention(self, cell: Cell, values: Values) -> str:
        derive = self.derived.get(cell.text)
        word = derive(values) if derive else values[cell.text]
        return with_article(word) if cell.article else word

    def _refusal(self, text: str, at: int) -> DataError:
        return DataError(
            f"not a text of this grammar: {text[at : at + 40]!r} cannot follow {text[max(0, at - 40) : at]!r}. "
            "A log-probability exists only for whole texts that the grammar writes."
        )

    def _compile(self, part: Part, after: Cell | None) -> Cell | None:
        if isinstance(part, str):
            return self._compile_template(part, after)
        if isinstance(part, Fork):
            ways = [self._compile(way, after) for way in part.ways]
            return Cell("fork", ways=tuple(way for way in ways if way is not None))
        for piece in reversed(part):
            after = self._compile(piece, after)
        return after

    def _compile_template(self, template: str, after: Cell | None) -> Cell | None:
        pieces = list(PIECE.finditer(template))
        assert "".join(piece[0] for piece in pieces) == template, f"cannot read the template {template!r}"
        for piece in reversed(pieces):
            article, sign, name, literal = piece.groups()
            if literal is not None:
                after = Cell("literal", literal, after)
            elif sign == "?":
                after = Cell("mark", name, after)
            elif sign == "+":
                after = Cell("pick", name, after, bool(article), self.slots[name])
            else:
                assert name in self.slots or name in self.derived, f"no blank is called {name!r}"
                after = Cell("mention", name, after, bool(article))
        return after
