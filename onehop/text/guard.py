"""Messages as a chat template gets them: none can write a control token, however the template cuts and joins them.

A control token begins and ends with signs, <|im_end|> with < and >. In messages noncharacters stand in for those, which
no control token has; once the template's own tokens are found, the signs return to their places.
"""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from onehop.text.settings import HIDE_CLOSE, HIDE_OPEN

# All of them noncharacters, which are in no text that was exchanged.
BREAK = "\ufdd2"  # inside a control token of letters alone that a message spells
OPENED, CLOSED = "\ufdd3", "\ufdd4"  # around what the assistant says, where they are asked for
STAND_INS = [
    *map(chr, range(0xFDD5, 0xFDF0)),
    *(chr(plane << 16 | 0xFFFE | i) for plane in range(1, 17) for i in (0, 1)),
]
RESERVED = re.compile(f"[{HIDE_OPEN}{HIDE_CLOSE}{BREAK}{OPENED}{CLOSED}{''.join(STAND_INS)}]")


class Guard:
    """The control tokens of a conversation: `special` ones, and others that its template writes."""

    def __init__(self, special: AbstractSet[str], written: AbstractSet[str], *, looked_for: Iterable[str] = ()):
        """looked_for: strings that the template may look for in a message, and is to find."""
        control = special | written
        signs = sorted({sign for token in control for sign in _signs(token)})
        self.stand_ins = dict(zip(signs, STAND_INS, strict=False))  # without one left, a token is taken as letters
        self._back = str.maketrans({stand_in: sign for sign, stand_in in self.stand_ins.items()} | {BREAK: ""})
        self._tokens = _any_of(control)
        looked_for = set(looked_for)
        self._parts = {
            True: self._pattern(special, free=(written - special) | looked_for),
            False: self._pattern(control, free=looked_for),
        }

    def hide(self, value: Any, *, assistant: bool = False) -> Any:
        """`value` with stand-ins in its strings; an assistant may write the tokens that are not special.

        Keys that are names stay: a template asks for them. Noncharacters that could forge something are dropped, and a
        control token of a single character becomes U+FFFD.
        """
        if isinstance(value, str):
            return self._parts[assistant].sub(self._stand_in, RESERVED.sub("", value))
        if isinstance(value, Mapping):
            names = [k if isinstance(k, str) and k.isidentifier() else self.hide(k, assistant=assistant) for k in value]
            inner = [self.hide(one, assistant=assistant) for one in value.values()]
            return dict(zip(names, inner, strict=True))
        if isinstance(value, (list, tuple)):
            return [self.hide(inner, assistant=assistant) for inner in value]
        return value

    def restore(self, text: str) -> str:
        """A text in which messages are as they were given."""
        return text.translate(self._back)

    def named(self, text: str) -> str | None:
        """What a template made of hidden messages, its own control tokens with hidden names and the messages restored.

        None where the text, restored, spells no others.
        """
        hidden, plain = self.restore(self._name(text)), self._name(self.restore(text))
        return None if hidden == plain else hidden

    def _name(self, text: str) -> str:
        return self._tokens.sub(rf"{HIDE_OPEN}\g<0>{HIDE_CLOSE}", text)

    def _pattern(self, control: AbstractSet[str], *, free: Iterable[str]) -> re.Pattern[str]:
        """Matches what stays as it is, then tokens of letters alone or of one character, then signs."""
        letters = {token for token in control if len(token) == 1 or not _signs(token) & self.stand_ins.keys()}
        free = {text for text in free if text and not any(_meet(text, token) for token in control)}
        return re.compile(
            f"(?P<free>{_any_of(free).pattern})|(?P<letters>{_any_of(letters).pattern})|{_any_of(self.stand_ins).pattern}"
        )

    def _stand_in(self, found: re.Match[str]) -> str:
        if found["free"]:
            return found["free"]
        if token := found["letters"]:
            return f"{token[0]}{BREAK}{token[1:]}" if token[1:] else "\ufffd"
        return self.stand_ins[found[0]]


def _signs(token: str) -> set[str]:
    """Its first and last character that is no letter, digit or space."""
    signs = [c for c in token if not c.isalnum() and not c.isspace()]
    return {signs[0], signs[-1]} if signs else set()


def _meet(text: str, token: str) -> bool:
    """Whether one holds the other, or begins where the other ends: a part of the token would be left in sight."""
    ends = any(text.endswith(token[:n]) or text.startswith(token[-n:]) for n in range(1, len(token)))
    return ends or text in token or token in text


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of them, the longest first; of none, nothing."""
    ordered = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
