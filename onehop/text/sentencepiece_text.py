"""How SentencePiece makes a text ready: replacements by its compiled table, spaces, the space before the first word.

What its C++ code does in `Normalizer::Normalize`, on characters instead of bytes.
"""

import re
import struct
from collections.abc import Iterator

from onehop.base.errors import TextError
from onehop.text.sentencepiece_file import SPACE, USER, SentencePieces

MAX_STEPS = 300_000  # through a table of replacements; those that come with sentencepiece take 30 thousand


class Ready:
    """Text -> the text that the pieces spell.

    `apart`, a pattern with one group, finds what is left as it stands; what is between is made ready piece by piece.
    legacy: each of them gets the space before the first word, otherwise only the one that begins the text.
    """

    def __init__(self, pieces: SentencePieces, *, legacy: bool = True):
        self._table = Replacements(pieces.charsmap)
        self.symbols = frozenset(pieces.of_kind(USER))  # never changed
        symbols = sorted(self.symbols, key=len, reverse=True)
        self._next = re.compile("|".join([f"({'|'.join(map(re.escape, symbols)) or '(?!)'})", self._table.openings]))
        self._one_space, self._before = pieces.one_space, SPACE if pieces.dummy_prefix else ""
        self._legacy = legacy

    def __call__(self, text: str, *, apart: re.Pattern[str] | None = None) -> str:
        parts = [text] if apart is None else apart.split(text)  # what stands between, what is left alone, …
        return "".join(
            part if i % 2 else self._section(part, self._before if self._legacy or i == 0 else "")
            for i, part in enumerate(parts)
        )

    def _section(self, text: str, before: str) -> str:
        text = "".join(self._replaced(text))
        if self._one_space:
            text = re.sub(" +", " ", text).lstrip(" ")
        if text:
            text = before + text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self._one_space else text

    def _replaced(self, text: str) -> Iterator[str]:
        """The text in parts; each longest key of the table, from the left, became its value."""
        done = 0
        while found := self._next.search(text, done):
            yield text[done : found.start()]
            done = found.end()
            if found[1]:
                yield found[1]
                continue
            width, value = self._table.longest(text, found.start())
            done = found.start() + max(width, 1)
            yield value if width else found[0]
        yield text[done:]


class Replacements:
    """The table in a `precompiled_charsmap`: a double-array trie of keys in UTF-8, then the values.

    `openings` is a pattern for where a key may begin. Raises TextError where the table is damaged. Source of the
    layout: Darts-clone, `DoubleArrayUnit`.
    """

    def __init__(self, charsmap: bytes):
        self.openings = "(?!)"
        self._units: tuple[int, ...] = ()
        if not charsmap:
            return
        try:
            (size,) = struct.unpack_from("<I", charsmap)
            self._units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
            self._values = charsmap[4 + size :]
            self.openings = self._openings()
        except (struct.error, ValueError, IndexError) as error:
            raise TextError(f"the table of replacements of a SentencePiece model is damaged ({error}).") from error

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters of `text` from `at` on the longest key has, and its value; (0, "") for none."""
        found, place = (0, ""), _offset(self._units[0])
        for width, character in enumerate(text[at : at + 64], start=1):
            for byte in character.encode(errors="surrogatepass"):
                place ^= byte
                if place >= len(self._units) or self._units[place] & 0x8000_00FF != byte:
                    return found
                unit = self._units[place]
                place ^= _offset(unit)
            if unit >> 8 & 1 and place < len(self._units):  # a key ends here
                start = self._units[place] & 0x7FFF_FFFF
                found = (width, self._values[start : self._values.find(b"\0", start)].decode(errors="replace"))
        return found

    def _openings(self) -> str:
        """Keys of one character, or the first of a longer one's before one that may be its second."""
        children: dict[int, list[int]] = {}
        for place, unit in enumerate(self._units):
            label = unit & 0x8000_00FF  # the highest bit is set in values
            if 0 < label < 256:
                children.setdefault(place ^ label, []).append(label)
        alone, first, second = set(), set(), set()
        todo, steps = [(_offset(self._units[0]), b"")], 0
        while todo:
            base, key = todo.pop()
            for label in children.get(base, ()):
                place, longer = base ^ label, key + bytes([label])
                text, steps = longer.decode(errors="ignore") if _whole(longer) else "", steps + 1
                if steps > MAX_STEPS or len(longer) > 8:
                    raise ValueError("it does not end")
                if len(text) == 1 and self._units[place] >> 8 & 1:
                    alone.add(text)
                if len(text) == 2:
                    first.add(text[0])
                    second.add(text[1])
                else:
                    todo.append((place ^ _offset(self._units[place]), longer))
        return f"{_any(alone)}|{_any(first)}(?={_any(second)})"


def _whole(key: bytes) -> bool:
    """Whether UTF-8 ends with a whole character."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _any(characters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else "(?!)"


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
