"""What every token id adds to a text, as bytes.

The decoder of a tokenizer.json, read once, so that whole texts and streams are decoded by one definition.
"""

import codecs
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from onehop.base.errors import TextError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KNOWN = "ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse"


class Pieces:
    """Token ids -> bytes, and bytes -> text.

    A token is bytes, not characters: one character may need several tokens. Bytes that are not UTF-8 become U+FFFD,
    and the characters around them stay; byte-level tokenizers give one U+FFFD for each maximal broken part (as Rust and
    the WHATWG do), byte-fallback ones one for each byte (as SentencePiece does; the `tokenizers` library would lose the
    valid characters of the same run of byte tokens too). Refuses decoders that are none of the kinds it knows.
    """

    def __init__(self, decoder: dict[str, Any] | None, *, token: Callable[[int], str | None]):
        steps = _flatten(decoder)
        fuse = next((i for i, step in enumerate(steps) if step["type"] == "Fuse"), len(steps))
        self._steps = steps[:fuse]  # on each token
        strips = [step for step in steps[fuse:] if step["type"] == "Strip"]
        self._strips = [(step["content"], step["start"]) for step in strips]  # on the whole text
        if any(step["stop"] for step in strips):
            raise TextError(
                "this tokenizer's decoder strips the end of a text, which cannot be streamed: not supported."
            )
        self.separator = b"" if steps else b" "  # without a decoder, `tokenizers` puts a space between tokens
        self.errors = "surrogateescape" if any(step["type"] == "ByteFallback" for step in steps) else "replace"
        self._first_differs = any(step["type"] == "Metaspace" for step in self._steps)
        self._token = token
        self._bytes: dict[tuple[int, bool], bytes | None] = {}

    def piece(self, token_id: int, *, first: bool) -> bytes | None:
        """The bytes of one id, at the beginning of a text or later; None for an id without a token (a padded row)."""
        key = (token_id, first and self._first_differs)
        if key not in self._bytes:
            token = self._token(token_id) if token_id >= 0 else None
            self._bytes[key] = None if token is None else self._convert(token, first=first)
        return self._bytes[key]

    def join(self, ids: Iterable[int], *, continues: bool = False) -> str:
        """The text of all ids together; `continues`: it goes on after other text, so its beginning is no beginning."""
        pieces: list[bytes] = []
        for token_id in ids:
            piece = self.piece(token_id, first=not (pieces or continues))
            if piece is not None:
                pieces.append(piece)
        start = self.separator if continues and pieces else b""
        text = self.settle((start + self.separator.join(pieces)).decode("utf-8", self.errors))
        return text if continues else self.strip(text)

    def incremental(self) -> codecs.IncrementalDecoder:
        """A decoder that keeps an unfinished character to itself."""
        return codecs.getincrementaldecoder("utf-8")(self.errors)

    @staticmethod
    def settle(text: str) -> str:
        """Escaped bytes (lone surrogates) -> U+FFFD, one for each byte."""
        return re.sub("[\udc80-\udcff]", "�", text)

    def strip(self, text: str) -> str:
        """`text` without what the decoder removes from the beginning of the whole."""
        for content, most in self._strips:
            for _ in range(most):
                text = text.removeprefix(content)
        return text

    @property
    def stripped_length(self) -> int:
        """How many characters `strip` may need to see."""
        return sum(most * len(content) for content, most in self._strips)

    def _convert(self, token: str, *, first: bool) -> bytes:
        for step in self._steps:
            kind = step["type"]
            if kind == "ByteLevel":
                return _byte_level(token)
            if kind == "ByteFallback" and (byte := _BYTE_TOKEN.fullmatch(token)):
                return bytes([int(byte[1], 16)])
            if kind == "Replace":
                token = token.replace(step["pattern"]["String"], step["content"])
            elif kind == "Metaspace":
                drop = first and step.get("prepend_scheme", "always") != "never"
                token = token.replace(step["replacement"], "" if drop else " ")
            elif kind == "Strip":
                token = _strip_token(token, step)
        return token.encode()


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoder's steps in order, nested sequences opened. Refuses a step that is not one of the known kinds."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    known = decoder["type"] in _KNOWN.split(", ")
    if not known or (decoder["type"] == "Replace" and "String" not in decoder["pattern"]):
        raise TextError(
            f"this tokenizer decodes with {decoder['type']}, which onehop does not read. It reads {_KNOWN}: "
            "byte-level BPE and SentencePiece-style tokenizers."
        )
    return [decoder]


def _strip_token(token: str, step: dict[str, Any]) -> str:
    for _ in range(step["start"]):
        token = token.removeprefix(step["content"])
    for _ in range(step["stop"]):
        token = token.removesuffix(step["content"])
    return token


def _byte_level(token: str) -> bytes:
    """The bytes that a byte-level token spells; a token that is not spelled so (an added one) is itself."""
    table = byte_of_character()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


@cache
def byte_of_character() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies -> that byte.

    Source: Radford et al. 2019 (GPT-2), `bytes_to_unicode`: printable Latin-1 bytes stand for themselves, the others
    are moved to U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
