"""A tiktoken file (a token in base64 and its rank on each line) as a `tokenizers.Tokenizer` that gives the same ids.

The file holds neither the pattern that cuts text into words nor the control tokens: a table knows them by how many
ranks there are.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onehop.base.errors import TextError
from onehop.text.pieces import byte_of_character

if TYPE_CHECKING:
    import tokenizers

MAX_BYTES, MAX_TOKEN = 64_000_000, 4096  # of a file (the largest published one has 4 MB) and of a token
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


@dataclass(frozen=True)
class Scheme:
    """What belongs to a file of ranks: the pattern of its words, its control tokens, which of them begin and end."""

    pattern: str
    special: Mapping[str, int] = field(default_factory=dict)
    bos: str | None = None
    eos: str | None = None


def _numbered(first: int, *names: str) -> dict[str, int]:
    return {f"<|{name}|>": first + i for i, name in enumerate(names)}


def _reserved(first: int, end: int) -> list[str]:
    return [f"reserved_special_token_{i}" for i in range(first, end)]


SCHEMES: Mapping[int, Scheme] = {
    # r50k_base of tiktoken (2019)
    50_256: Scheme(
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _numbered(50_256, "endoftext"), eos="<|endoftext|>",
    ),
    # cl100k_base of tiktoken
    100_256: Scheme(
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        _numbered(100_257, "endoftext", "fim_prefix", "fim_middle", "fim_suffix") | {"<|endofprompt|>": 100_276},
        eos="<|endoftext|>",
    ),
    # The tokenizer.model of Meta's models of 2024: 256 control tokens
    128_000: Scheme(
        rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}",
        _numbered(
            128_000, "begin_of_text", "end_of_text", *_reserved(0, 4), "start_header_id", "end_header_id",
            *_reserved(4, 5), "eot_id", *_reserved(5, 251),
        ),
        bos="<|begin_of_text|>", eos="<|end_of_text|>",
    ),
    # The .tiktoken file of Alibaba's first models
    151_643: Scheme(
        rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}",
        _numbered(151_643, "endoftext", "im_start", "im_end", *(f"extra_{i}" for i in range(205))),
        eos="<|endoftext|>",
    ),
    # o200k_base of tiktoken
    199_998: Scheme(
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDINGS}?|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}, eos="<|endoftext|>",
    ),
}  # fmt: skip


def is_ranks(file: Path) -> bool:
    """Whether a file looks like one of ranks: its first line is base64 and a number."""
    with open(file, "rb") as handle:
        parts = handle.read(MAX_TOKEN).split(b"\n")[0].split()
    return len(parts) == 2 and parts[1].isdigit()


def read_ranks(file: Path) -> dict[bytes, int]:
    """Token -> rank. Raises TextError for a damaged file."""
    if file.stat().st_size > MAX_BYTES:
        raise _damaged(file, f"it is larger than {MAX_BYTES} bytes")
    found: dict[bytes, int] = {}
    lines = file.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            token, rank = line.split()
            found[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            if line.strip():
                raise _damaged(file, f"line {number} is no token and rank") from error
    if len(set(found.values())) < len(found) or min(found.values(), default=0) < 0:
        raise _damaged(file, "a rank occurs twice or is negative")
    missing = [byte for byte in range(256) if bytes([byte]) not in found]
    if missing or max(map(len, found)) > MAX_TOKEN:
        raise _damaged(file, f"the byte {missing[0]} has no rank" if missing else "a token is too long")
    return found


def scheme_of(file: Path, ranks: Mapping[bytes, int]) -> Scheme:
    """The pattern and the control tokens of such a file. Raises TextError where no row of the table fits."""
    if len(ranks) not in SCHEMES:
        raise TextError(
            f"{file} holds {len(ranks)} ranks, and which pattern cuts its words is not known. Known: files of "
            f"{', '.join(map(str, SCHEMES))} ranks. Give the checkpoint's tokenizer.json instead."
        )
    return SCHEMES[len(ranks)]


def backend_of_ranks(ranks: Mapping[bytes, int], scheme: Scheme) -> "tokenizers.Tokenizer":
    """Every way to join two tokens to a third, the lowest rank first; a word that is a token is taken whole."""
    from tokenizers import Tokenizer

    character_of = {byte: character for character, byte in byte_of_character().items()}
    spell = {token: "".join(map(character_of.__getitem__, token)) for token in ranks}
    merges = [
        [spell[token[:n]], spell[token[n:]]]
        for token in sorted(ranks, key=lambda token: ranks[token])
        for n in range(1, len(token))
        if token[:n] in ranks and token[n:] in ranks
    ]
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for name, i in sorted(scheme.special.items(), key=lambda pair: pair[1])
    ]  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": scheme.pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    spec = {
        "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None, "decoder": level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {"type": "BPE", "ignore_merges": True, "merges": merges,
                  "vocab": {spell[token]: rank for token, rank in ranks.items()} | dict(scheme.special)},
    }  # fmt: skip
    return Tokenizer.from_str(json.dumps(spec))


def _damaged(file: Path, what: str) -> TextError:
    return TextError(f"{file} is not a whole file of ranks ({what}). Get it again from its source.")
