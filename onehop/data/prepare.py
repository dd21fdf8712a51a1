"""From text to a tokenizer and token shards, kept in a folder so that unchanged text is not encoded twice."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from onehop.base.errors import TextError
from onehop.base.files import atomic_folder, atomic_write
from onehop.data.draws import draws
from onehop.data.shards import FORMAT, SIDES, Progress, Shards, write_shards
from onehop.data.sources import Source, open_source
from onehop.data.split import Split
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.cuts import LONG, pieces_of
from onehop.text.tokenizer import Tokenizer

TRAINED = ("bpe", "characters")
_DONE = "source.json"  # written last
_PLACE = re.compile(r"[0-9a-f]{16}|\.[0-9a-f]{16}\.[0-9a-f]{8}")  # shards, and what a killed run left half-written
_PER_TOKEN = 20_000  # bytes for each token of a BPE: from more text, it is trained on a sample of that size


@dataclass(frozen=True)
class Prepared:
    """A tokenizer and both sides of the text as its tokens; `reused`: found in `folder` as an earlier run left it."""

    tokenizer: Tokenizer
    train: Shards
    validation: Shards
    description: str
    n_skipped: int
    folder: Path
    reused: bool


def prepare(
    *,
    folder: str | Path,
    files: Sequence[str | Path] = (),
    corpus: str | None = None,
    n_documents: int | None = None,
    separator: str | None = None,
    text_field: str = "text",
    tokenizer: str | Path = "bpe",
    vocab_size: int = 1024,
    validation: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> Prepared:
    """Read the documents, train or load the tokenizer, and encode both sides of the split into shards below `folder`.

    tokenizer: "bpe" (`vocab_size` tokens, trained on the training side, at most 20 kB of it for each token),
    "characters" (of the whole text), or the path of a tokenizer. The shards have a name made from the contents of the
    text, the tokenizer and the split: where a run with the same three left them, they are used as they are; damaged
    ones are refused. Nothing half-written stays.
    """
    source = open_source(
        files=files, corpus=corpus, n_documents=n_documents, separator=separator, text_field=text_field, seed=seed
    )
    given = None if tokenizer in TRAINED else _load(tokenizer)
    kind = [str(tokenizer), vocab_size if tokenizer == "bpe" else None] if given is None else [given.fingerprint]
    key = hashlib.sha256(json.dumps([FORMAT, source.fingerprint(), kind, validation, seed]).encode()).hexdigest()[:16]
    place = Path(folder) / key
    reused = (place / _DONE).is_file()
    if not reused:
        split = Split.of(source, fraction=validation, seed=seed)
        with atomic_folder(place) as temporary:
            ready = given or _train(str(tokenizer), source, split, vocab_size=vocab_size, progress=progress)
            ready.save(temporary)
            write_shards(temporary, split.apply(source), ready, progress=progress)
            atomic_write(temporary / _DONE, json.dumps({"text": source.description, "tokenizer": kind}) + "\n")
    train, held = (Shards.open(place, side) for side in SIDES)
    ready = given or Tokenizer.load(place)
    return Prepared(ready, train, held, source.description, n_skipped=source.n_skipped, folder=place, reused=reused)


def remove_others(kept: Prepared) -> None:
    """Remove shards that earlier runs left beside these. A folder with any other name is the user's, and stays."""
    for folder in kept.folder.parent.iterdir():
        if folder != kept.folder and folder.is_dir() and _PLACE.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _load(path: str | Path) -> Tokenizer:
    if not Path(path).exists():
        raise TextError(
            f"data.tokenizer={path} is neither {' nor '.join(TRAINED)}, and no such file exists. Give the path of a "
            "tokenizer.json or of a checkpoint's folder."
        )
    return Tokenizer.load(path)


def _train(kind: str, source: Source, split: Split, *, vocab_size: int, progress: Progress | None) -> Tokenizer:
    if kind == "characters":
        return train_characters(source)
    share = min(1.0, _PER_TOKEN * vocab_size / max(source.n_bytes, 1))
    text = _training_text(source, split, share=share, progress=progress)
    return train_bpe(_then(text, "tokens to find in the text", vocab_size, progress), vocab_size=vocab_size)


def _then(text: Iterator[str], what: str, number: int, progress: Progress | None) -> Iterator[str]:
    """The text, and when it has been read, word of what follows."""
    yield from text
    if progress is not None:
        progress(what, number, None)


def _training_text(source: Source, split: Split, *, share: float, progress: Progress | None) -> Iterator[str]:
    """About this share of the training side, never nothing: documents, long ones in pieces, from all over the text."""
    lots = chain([0.0], draws(split.seed + 1))
    for n, (document, is_validation) in enumerate(split.apply(source), start=1):
        if not is_validation:
            yield from (piece for piece in pieces_of(document, LONG) if next(lots) < share)
        if progress is not None and n % 1000 == 0:
            progress("documents read for the tokenizer", n, None)
