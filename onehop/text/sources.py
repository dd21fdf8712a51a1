"""Which file of a checkpoint's folder holds its tokenizer, and what is read from it, whatever its kind."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.base.trust import leads_out
from onehop.text.sentencepiece import backend_of, needs_ready
from onehop.text.sentencepiece_file import read_sentencepiece
from onehop.text.sentencepiece_text import Ready
from onehop.text.settings import TokenizerSettings, read_backend, read_json, read_settings
from onehop.text.tiktoken_file import backend_of_ranks, is_ranks, read_ranks, scheme_of

if TYPE_CHECKING:
    import tokenizers

# In this order. (A sentencepiece.bpe.model is not among them: its ids are not those of its checkpoint.)
NAMES = ("tokenizer.json", "tokenizer.model", "spiece.model")
RANKS = "*.tiktoken"
FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True, eq=False)
class Source:
    """What `Tokenizer` is made of; `ready` and `data`, the file itself, where the backend alone does not say it all."""

    backend: "tokenizers.Tokenizer"
    settings: TokenizerSettings
    ready: Ready | None = None
    name: str = NAMES[0]
    data: bytes = b""


def tokenizer_file(folder: Path) -> Path | None:
    """The file in a folder that holds its tokenizer."""
    found = [folder / name for name in NAMES if (folder / name).is_file()] or sorted(folder.glob(RANKS))
    return found[0] if found else None


def read_source(path: Path) -> Source:
    """The tokenizer of a folder, or of one file. Raises TextError for what is missing, damaged or cannot be kept."""
    file = path if path.is_file() else tokenizer_file(path) or path / NAMES[0]
    if path.is_dir() and (link := leads_out(path)) is not None:
        raise TextError(
            f"{link} is a link that leads out of its folder. Where you trust it, put the file itself there instead."
        )
    settings = read_settings(file.parent)
    if file.suffix == ".json" or not file.is_file():
        return Source(read_backend(file), settings)
    return _from_ranks(file, settings) if is_ranks(file) else _from_sentencepiece(file, settings)


def _from_ranks(file: Path, settings: TokenizerSettings) -> Source:
    ranks = read_ranks(file)
    scheme = scheme_of(file, ranks)
    names = {i: name for name, i in scheme.special.items()}
    names |= {i: row["content"] for i, row in _added(file, settings).items() if i >= len(ranks)}
    special = {name: i for i, name in names.items()}
    return Source(
        backend_of_ranks(ranks, replace(scheme, special=special)),
        _with_ends(settings, bos=scheme.bos, eos=scheme.eos, ends=False),
    )


def _from_sentencepiece(file: Path, settings: TokenizerSettings) -> Source:
    pieces = read_sentencepiece(file)
    legacy = settings.config.get("legacy") is not False
    pieces = replace(pieces, dummy_prefix=bool(settings.config.get("add_prefix_space", pieces.dummy_prefix)))
    ready = Ready(pieces, legacy=legacy) if needs_ready(pieces) else None
    backend = backend_of(pieces, prepared=ready is not None, legacy=legacy)
    added = _added(file, settings)
    for number in range(0 if added else settings.config.get("extra_ids") or 0):  # of a time before names were listed
        n = settings.config["extra_ids"] - 1 - number
        added[len(pieces.pieces) + number] = {"content": f"<extra_id_{n}>", "special": True}
    _add(backend, added, file)
    kept = replace(settings, config=settings.config | {"added_tokens_decoder": {str(i): added[i] for i in added}})
    ends = _with_ends(kept if added else settings, bos=pieces.bos, eos=pieces.eos, ends=True)
    return Source(backend, ends, ready, file.name, b"" if ready is None else file.read_bytes())


def _with_ends(settings: TokenizerSettings, *, bos: str | None, eos: str | None, ends: bool) -> TokenizerSettings:
    """What the file itself says about begin and end where no JSON beside it does.

    A vocabulary with a begin token begins each text with it. `ends`: one that has an end token only ends each text with
    it, as SentencePiece vocabularies of encoder-decoders do.
    """
    settings = replace(settings, bos=settings.bos or bos, eos=settings.eos or eos)
    if settings.add_bos is None:
        settings = replace(settings, add_bos=bos is not None)
    if settings.add_eos is None:
        settings = replace(settings, add_eos=ends and bos is None and eos is not None)
    return settings


def _added(file: Path, settings: TokenizerSettings) -> dict[int, dict[str, Any]]:
    """Tokens that the JSON files beside a vocabulary add to it, by id."""
    found: dict[int, dict[str, Any]] = {}
    names = read_json(file.with_name("added_tokens.json"))
    decoder = settings.config.get("added_tokens_decoder") or {}
    try:
        for name, i in names.items():
            found[int(i)] = {"content": str(name), "special": False}
        for i, row in decoder.items():
            found[int(i)] = {"content": str(row["content"])} | {flag: bool(row.get(flag, False)) for flag in FLAGS}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TextError(f"the tokens that are added beside {file} are damaged. Get its JSON files again.") from error
    return dict(sorted(found.items()))


def _add(backend: "tokenizers.Tokenizer", added: Mapping[int, Mapping[str, Any]], file: Path) -> None:
    from tokenizers import AddedToken

    for i, row in added.items():
        flags = {flag: row.get(flag, False) for flag in FLAGS}
        backend.add_tokens([AddedToken(row["content"], **flags)])
        if backend.token_to_id(row["content"]) != i:
            raise TextError(
                f"the files beside {file} say that {row['content']!r} has the id {i}, but by the order of the tokens "
                f"it would be {backend.token_to_id(row['content'])}. Give the checkpoint's tokenizer.json instead."
            )
