"""What a SentencePiece `.model` says, read from its bytes: no package is needed, and nothing in the file is run.

The file is a protocol buffer; field numbers and defaults are those of sentencepiece_model.proto (Kudo & Richardson
2018, arXiv:1808.06226, whose code is the reference).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from onehop.base.errors import TextError

UNIGRAM, BPE, CHARACTERS = 1, 2, 4  # TrainerSpec.ModelType; 3 is WORD
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # SentencePiece.Type
MAX_BYTES, MAX_PIECE = 32_000_000, 1024  # of a file and of a piece; the largest published file has 5 MB
SPACE = "▁"


@dataclass(frozen=True)
class Piece:
    """One row of the vocabulary; its id is its place."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class SentencePieces:
    """A vocabulary with scores, and how text is made ready for it.

    charsmap: the compiled table of replacements, empty for none. bos, eos: names of control pieces, if there are such.
    """

    pieces: tuple[Piece, ...]
    model: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    dummy_prefix: bool = True
    one_space: bool = True  # runs of spaces become one, and those at either end vanish
    bos: str | None = None
    eos: str | None = None

    def of_kind(self, *kinds: int) -> list[str]:
        """The texts of all pieces of these kinds."""
        return [piece.text for piece in self.pieces if piece.kind in kinds]


def read_sentencepiece(file: Path) -> SentencePieces:
    """The contents of a `.model` file. Raises TextError for one that is damaged or asks for what cannot be kept."""
    if file.stat().st_size > MAX_BYTES:
        _damaged(file, f"it is larger than {MAX_BYTES} bytes")
    try:
        found = _message(file.read_bytes())
        pieces = tuple(_piece(_message(raw)) for raw in found.get(1, ()))
        trainer, normalizer, undo = (_message(_last(found, field, b"")) for field in (2, 3, 5))
        _refuse_what_differs(file, trainer, normalizer, undo)
        control = {piece.text for piece in pieces if piece.kind == CONTROL}
        names = [_last(trainer, field, name).decode() for field, name in ((46, b"<s>"), (47, b"</s>"))]
        charsmap = _last(normalizer, 2, b"")
        flags = [bool(_last(*where)) for where in ((trainer, 35, 0), (normalizer, 3, 1), (normalizer, 4, 1))]
        model = _last(trainer, 3, UNIGRAM)
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        _damaged(file, str(error) or type(error).__name__)
    if len({piece.text for piece in pieces}) < len(pieces) or not pieces or not isinstance(charsmap, bytes):
        _damaged(file, "a piece occurs twice in it" if pieces else "it holds no pieces")
    if sum(piece.kind == UNKNOWN for piece in pieces) != 1:
        _damaged(file, "it has to have exactly one unknown piece")
    bos, eos = (name if name in control else None for name in names)
    return SentencePieces(pieces, model, flags[0], charsmap, flags[1], flags[2], bos, eos)


def _refuse_what_differs(file: Path, trainer: dict[int, Any], normalizer: dict[int, Any], undo: dict[int, Any]) -> None:
    """Options that hardly any published model uses, and that would change ids."""
    wrong = {
        "model_type=WORD": _last(trainer, 3, UNIGRAM) not in (UNIGRAM, BPE, CHARACTERS),
        "treat_whitespace_as_suffix=true": bool(_last(trainer, 24, 0)),
        "escape_whitespaces=false": not _last(normalizer, 5, 1),
        "a denormalizer": bool(_last(undo, 2, b"")),
    }
    for what, given in wrong.items():
        if given:
            raise TextError(
                f"{file} says {what}, which onehop does not read. It reads unigram, bpe and char models that mark the "
                "beginnings of words. Give the checkpoint's tokenizer.json instead."
            )


def _piece(fields: dict[int, Any]) -> Piece:
    score = struct.unpack("<f", _last(fields, 2, bytes(4)))[0]
    if score != score or score in (float("inf"), float("-inf")):
        raise ValueError("a score is no number")
    text, kind = _last(fields, 1, b""), _last(fields, 3, NORMAL)
    if len(text) > MAX_PIECE:
        raise ValueError(f"a piece of {len(text)} bytes")
    if kind not in (NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE):
        raise ValueError(f"a piece of the unknown type {kind}")
    return Piece(text.decode(), score, kind)


def _message(data: bytes) -> dict[int, Any]:
    """Field number -> its values in order, of one protocol-buffer message: whole numbers, or bytes."""
    found: dict[int, Any] = {}
    for field, value in _fields(data):
        found.setdefault(field, []).append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _number(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("it is no protocol buffer")
        if at + size > len(data):
            raise ValueError("it ends inside a field")
        yield key >> 3, data[at : at + size]
        at += size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A whole number of 7 bits per byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number in it does not end")


def _last(fields: dict[int, Any], field: int, default: Any) -> Any:
    """The value of a field that stands once: where it is repeated, the last one counts."""
    value = fields.get(field, [default])[-1]
    if isinstance(value, bytes) != isinstance(default, bytes):
        raise ValueError(f"field {field} is of another type")
    return value


def _damaged(file: Path, what: str) -> NoReturn:
    raise TextError(f"{file} is not a whole SentencePiece model ({what}). Get it again from its source.") from None
