"""A SentencePiece vocabulary as a `tokenizers.Tokenizer` that gives the ids that sentencepiece gives."""

import json
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.text.sentencepiece_file import (
    BPE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER,
    SentencePieces,
)
from onehop.text.settings import HIDE_CLOSE, HIDE_OPEN

SPELLED_BYTE = "(?<=<)(?=0x[0-9A-F]{2}>)"

if TYPE_CHECKING:
    import tokenizers


def backend_of(pieces: SentencePieces, *, prepared: bool, legacy: bool = True) -> "tokenizers.Tokenizer":
    """The backend; `prepared`: the text that it gets has gone through `Ready`, so that it changes nothing itself.

    legacy: the space before the first word also stands after every control token, as sentencepiece, which sees one text
    between two of them, puts it; otherwise at the beginning of the whole only.
    """
    from tokenizers import Tokenizer

    added = [
        {"id": i, "content": piece.text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": piece.kind == USER, "special": piece.kind != USER}
        for i, piece in enumerate(pieces.pieces) if piece.kind in (UNKNOWN, CONTROL, USER)
    ]  # fmt: skip
    normalizer = None if prepared else _normalizer(prefix=pieces.dummy_prefix and legacy)
    first = pieces.dummy_prefix and not legacy and not prepared
    spec = {
        "version": "1.0", "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": _pre_tokenizer(pieces, first=first), "post_processor": None,
        "decoder": _decoder(strip=pieces.dummy_prefix),
        "model": _unigram(pieces) if pieces.model == UNIGRAM else _bpe(pieces),
    }  # fmt: skip
    return Tokenizer.from_str(json.dumps(spec))


def _normalizer(*, prefix: bool) -> dict[str, Any]:
    prepend = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {"type": "Sequence", "normalizers": [*prepend, escape]}


def _pre_tokenizer(pieces: SentencePieces, *, first: bool) -> dict[str, Any] | None:
    """A space before the first word; and a unigram model's byte pieces, which no text may spell, cut in two there."""
    steps: list[dict[str, Any]] = []
    if first:
        steps.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False})
    if pieces.model == UNIGRAM and pieces.byte_fallback:
        steps.append({"type": "Split", "pattern": {"Regex": SPELLED_BYTE}, "behavior": "Isolated", "invert": False})
    return {"type": "Sequence", "pretokenizers": steps} if steps else None


def _decoder(*, strip: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
    return {"type": "Sequence", "decoders": steps}


def needs_ready(pieces: SentencePieces) -> bool:
    """Whether the backend alone could not make the text ready as sentencepiece does.

    Its own reading of a table of replacements goes by graphemes, its spaces by section, and a text that begins with a
    symbol of the user's would lose its first space.
    """
    return bool(pieces.charsmap) or pieces.one_space or (pieces.dummy_prefix and bool(pieces.of_kind(USER)))


def _unigram(pieces: SentencePieces) -> dict[str, Any]:
    """An unused piece is never found: it gets a name that no text spells."""
    rows = [[f"{HIDE_OPEN}{p.text}{HIDE_CLOSE}" if p.kind == UNUSED else p.text, p.score] for p in pieces.pieces]
    unknown = next(i for i, piece in enumerate(pieces.pieces) if piece.kind == UNKNOWN)
    return {"type": "Unigram", "unk_id": unknown, "vocab": rows, "byte_fallback": pieces.byte_fallback}


def _bpe(pieces: SentencePieces) -> dict[str, Any]:
    """Every way to join two pieces to a third, the best score first."""
    if pieces.of_kind(UNUSED):
        raise TextError("a SentencePiece BPE model with unused pieces is not read. Give a tokenizer.json instead.")
    found = {piece.text: piece.score for piece in pieces.pieces if piece.kind == NORMAL}
    joins = []
    for i, (text, score) in enumerate(found.items()):
        if pieces.model == BPE:
            cuts = ((text[:n], text[n:]) for n in range(1, len(text)))
            joins += [(-score, i, -len(cut[0]), cut) for cut in cuts if cut[0] in found and cut[1] in found]
    return {
        "type": "BPE", "unk_token": pieces.of_kind(UNKNOWN)[0], "fuse_unk": True, "byte_fallback": pieces.byte_fallback,
        "vocab": {piece.text: i for i, piece in enumerate(pieces.pieces)},
        "merges": [pair for *_, pair in sorted(joins)],
    }  # fmt: skip
