"""From text to a tokenizer and token shards, kept in a folder so that unchanged text is not encoded twice."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError, OnehopError, TextError
from onehop.base.files import atomic_folder, atomic_write
from onehop.config.data import MixtureSource
from onehop.data.live import WINDOW, Live
from onehop.data.mixture import Mixture
from onehop.data.shards import FORMAT, SIDES, Shards
from onehop.data.sides import HEAD, Sided, of_one_source, train_tokenizer
from onehop.data.sources import Progress, Source, open_source, without_duplicates
from onehop.data.split import Split
from onehop.text.tokenizer import Tokenizer

TRAINED = ("bpe", "characters")
_DONE = "source.json"  # written last
_PLACE = re.compile(r"[0-9a-f]{16}|\.[0-9a-f]{16}\.[0-9a-f]{8}")  # shards, and what a killed run left half-written


@dataclass(frozen=True)
class Prepared:
    """A tokenizer and both sides of the text as its tokens; `reused`: found in `folder` as an earlier run left it.

    n_duplicates: documents that were dropped, of each source. identity: another one where rows could be others.
    """

    tokenizer: Tokenizer
    train: Shards | Live | Mixture[Shards] | Mixture[Live]
    validation: Shards | Mixture[Shards]
    description: str
    n_skipped: int
    n_duplicates: tuple[int, ...]
    folder: Path
    identity: str
    reused: bool


@dataclass(frozen=True)
class _Named:
    """A source as the recipe has it; the only one is called ""."""

    name: str
    weight: float
    source: Source


def prepare(
    *,
    folder: str | Path,
    mixture: Sequence[MixtureSource] = (),
    deduplicate: bool = False,
    stream: bool = False,
    tokenizer: str | Path | Tokenizer = "bpe",
    vocab_size: int = 1024,
    validation: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
    **text: Any,
) -> Prepared:
    """Read the documents, train or load the tokenizer, and encode both sides of the split into shards below `folder`.

    text: `files`, `corpus` and what else `sources.open_source` takes, unless there is a `mixture`. deduplicate: see
    `sources.without_duplicates`. stream: only the validation side is encoded, from the beginning of the text; the rest
    is read while training. tokenizer: "bpe" (`vocab_size` tokens, trained on the training side, at most 20 kB of it
    for each token), "characters" (of the whole text), or a tokenizer or its path. The shards have a name made from the
    contents of the text, the tokenizer and the split: where a run with the same three left them, they are used as they
    are; damaged ones are refused. Nothing half-written stays.
    """
    named = _sources(mixture, text, stream=stream, seed=seed)
    given = None if tokenizer in TRAINED else _load(tokenizer)
    kind = [str(tokenizer), vocab_size if tokenizer == "bpe" else None] if given is None else [given.fingerprint]
    place = Path(folder) / _key(named, kind, [validation, seed, deduplicate, stream])
    reused = (place / _DONE).is_file()
    if not reused:
        sources = _documents(named, deduplicate=deduplicate, progress=progress)
        parts = [
            Sided.of(part.name, part.weight, source, fraction=validation, seed=seed, stream=stream)
            for part, source in zip(named, sources, strict=True)
        ]
        with atomic_folder(place) as temporary:
            ready = given or train_tokenizer(str(tokenizer), parts, vocab_size=vocab_size, progress=progress)
            _write(temporary, parts, ready, progress=progress)
            about = {"text": _describe(named), "tokenizer": kind, "sources": [_found(part) for part in parts]}
            atomic_write(temporary / _DONE, json.dumps(about) + "\n")
    ready = given or _kept_tokenizer(place)
    return _opened(place, named, ready, fraction=validation, seed=seed, stream=stream, reused=reused)


def remove_others(kept: Prepared) -> None:
    """Remove shards that earlier runs left beside these. A folder with any other name is the user's, and stays."""
    for folder in kept.folder.parent.iterdir():
        if folder != kept.folder and folder.is_dir() and _PLACE.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _sources(mixture: Sequence[MixtureSource], text: dict[str, Any], *, stream: bool, seed: int) -> list[_Named]:
    if not mixture:
        return [_Named("", 1.0, open_source(seed=seed, stream=stream, **text))]
    found = []
    for part in mixture:
        own = part.model_dump(exclude={"name", "weight"})
        try:
            source = open_source(seed=seed, stream=stream, **own)
        except OnehopError as error:
            raise of_one_source(part.name, error) from error
        found.append(_Named(part.name, part.weight, source))
    return found


def _documents(named: Sequence[_Named], *, deduplicate: bool, progress: Progress | None) -> list[Source]:
    sources = [part.source for part in named]
    return without_duplicates(sources, progress=progress) if deduplicate else sources


def _key(named: Sequence[_Named], kind: list[Any], options: list[Any]) -> str:
    """A folder's name, made from all that decides what is in it."""
    trained = kind[0] in TRAINED  # from each source by its weight
    texts = [[part.name, part.source.fingerprint(), part.weight if trained else None] for part in named]
    return hashlib.sha256(json.dumps([FORMAT, texts, kind, options, WINDOW, HEAD]).encode()).hexdigest()[:16]


def _opened(
    place: Path,
    named: Sequence[_Named],
    tokenizer: Tokenizer,
    *,
    fraction: float,
    seed: int,
    stream: bool,
    reused: bool,
) -> Prepared:
    rows = _read_found(place / _DONE, len(named))
    held = tuple(Shards.open(place / part.name, SIDES[1]) for part in named)
    if stream:
        splits = [Split(fraction, seed, moved=row["moved"], single=row["single"]) for row in rows]
        train: tuple[Any, ...] = tuple(
            Live(part.source, split, row["n_head"], tokenizer, place / part.name)
            for part, split, row in zip(named, splits, rows, strict=True)
        )
    else:
        train = tuple(Shards.open(place / part.name, SIDES[0]) for part in named)
    names, weights = tuple(part.name for part in named), tuple(part.weight for part in named)
    mixed = len(named) > 1
    return Prepared(
        tokenizer,
        Mixture(names, weights, train) if mixed else train[0],
        Mixture(names, weights, held) if mixed else held[0],
        _describe(named),
        n_skipped=sum(part.source.n_skipped for part in named),
        n_duplicates=tuple(row["n_duplicates"] for row in rows),
        folder=place,
        identity=place.name + "".join(f" {weight:g}" for weight in weights if mixed),
        reused=reused,
    )


def _write(folder: Path, parts: Sequence[Sided], tokenizer: Tokenizer, *, progress: Progress | None) -> None:
    tokenizer.save(folder)
    for part in parts:
        part.write(folder / part.name, tokenizer, progress=progress)


def _found(part: Sided) -> dict[str, Any]:
    """What preparing a source found out, to be read by later runs."""
    found = {"n_duplicates": len(part.source.dropped), "n_head": part.n_head}
    return found | {"moved": part.split.moved, "single": part.split.single}


def _read_found(file: Path, n: int) -> list[dict[str, Any]]:
    try:
        rows = [{key: row[key] for key in ("n_duplicates", "n_head", "moved", "single")} for row in _rows(file)]
    except (ValueError, KeyError, TypeError):
        rows = []
    if len(rows) != n:
        raise DataError(f"{file} is damaged. Delete {file.parent}; it is built again from the text.")
    return rows


def _rows(file: Path) -> list[Any]:
    return list(json.loads(file.read_text())["sources"])


def _describe(named: Sequence[_Named]) -> str:
    return "; ".join(f"{part.name}: {part.source.description}".removeprefix(": ") for part in named)


def _kept_tokenizer(place: Path) -> Tokenizer:
    """The tokenizer that was trained on the text and lies beside its shards."""
    try:
        return Tokenizer.load(place)
    except TextError as error:
        raise DataError(f"{error} It was trained here: delete {place}; it is built again from the text.") from error


def _load(path: str | Path | Tokenizer) -> Tokenizer:
    if isinstance(path, Tokenizer):
        return path
    if not Path(path).exists():
        raise TextError(
            f"data.tokenizer={path} is neither {' nor '.join(TRAINED)}, and no such file exists. Give the path of a "
            "tokenizer.json or of a checkpoint's folder."
        )
    return Tokenizer.load(path)
