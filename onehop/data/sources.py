"""Text files, folders, globs, JSON lines, and the built-in corpora -> documents."""

import glob
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onehop.base.errors import DataError
from onehop.base.units import human_bytes
from onehop.data.corpora import CORPORA, Corpus

_PROBE = 1 << 13  # bytes of a file in which a NUL byte marks it as binary
_JSONL = (".jsonl", ".ndjson")
_FIELD = "text"  # of a JSON line, where none is named


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again in the same order, and what is known of them beforehand.

    n_skipped: hidden and binary files that a folder holds besides. fingerprint(): hex digits that change when a
    document could change.
    """

    description: str
    read: Callable[[], Iterator[str]]
    fingerprint: Callable[[], str]
    n_documents: int | None = None
    n_skipped: int = 0
    n_bytes: int = 0  # of all files; 0 for what is made while it is read

    def __iter__(self) -> Iterator[str]:
        """The documents that are more than white space, one by one, at most `n_documents`."""
        found = (document for document in self.read() if document and not document.isspace())
        return itertools.islice(found, self.n_documents)


def open_source(
    *,
    files: Sequence[str | Path] = (),
    corpus: str | None = None,
    n_documents: int | None = None,
    separator: str | None = None,
    jsonl_field: str = _FIELD,
    seed: int = 0,
) -> Source:
    """The documents of `files` (paths, folders, globs) or of the built-in `corpus`, the first `n_documents` of them.

    A plain text file is one document, or is split at every `separator`; each line of a .jsonl file is one, taken from
    `jsonl_field`. Files are read in the order given, the contents of a folder or a glob sorted by path, each file once.
    Refuses both or neither, a missing file, a pattern that matches nothing, an endless corpus without a number; while
    reading: bytes that are not UTF-8, a JSON line that is broken or lacks the field.
    """
    _check_numbers(n_documents, seed)
    if corpus is not None and files:
        raise DataError(f"data.corpus={corpus} and data.files={','.join(map(str, files))}: give one of the two.")
    if corpus is not None:
        found = CORPORA.get(corpus)
        if found.endless and n_documents is None:
            raise DataError(f"the corpus {corpus} is endless. Say how many documents to take: data.n_documents=20000.")
        return _built_in(found, seed=seed, n_documents=n_documents)
    if not files:
        raise DataError(f"there is no text: give data.files=PATH or data.corpus (one of {', '.join(CORPORA.names())}).")
    if separator == "":
        raise DataError("data.separator is empty. Give the text that stands between two documents, or leave it out.")
    paths, n_skipped = _find(files)
    _refuse_unheard(paths, separator=separator, jsonl_field=jsonl_field)
    return Source(
        _describe(paths),
        read=partial(_read_files, paths, separator=separator, jsonl_field=jsonl_field),
        fingerprint=lambda: _digest(_contents(paths), separator, jsonl_field, n_documents),
        n_documents=n_documents,
        n_skipped=n_skipped,
        n_bytes=sum(path.stat().st_size for path in paths),
    )


def _check_numbers(n_documents: int | None, seed: int) -> None:
    if n_documents is not None and n_documents < 1:
        raise DataError(f"n_documents={n_documents} leaves no document to read. Use 1 or more, or leave it out.")
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more.")


def _refuse_unheard(paths: Sequence[Path], *, separator: str | None, jsonl_field: str) -> None:
    """Refuse an option that none of the files listens to."""
    n_jsonl = sum(path.suffix in _JSONL for path in paths)
    if separator is not None and n_jsonl == len(paths):
        raise DataError(
            f"data.separator={separator!r} has no effect: each line of a {_JSONL[0]} file is a document. Leave it out."
        )
    if jsonl_field != _FIELD and not n_jsonl:
        raise DataError(f"data.jsonl_field={jsonl_field} has no effect: no file ends in {_JSONL[0]}. Leave it out.")


def _built_in(corpus: Corpus, *, seed: int, n_documents: int | None) -> Source:
    def fingerprint() -> str:
        """From the numbers and the first documents, which change with the code that tells them."""
        probe = list(itertools.islice(corpus.documents(seed, limit=n_documents), 32))
        return _digest(corpus.name, seed, n_documents, sys.version, probe)

    return Source(
        f"the corpus {corpus.name}",
        read=partial(corpus.documents, seed, limit=n_documents),
        fingerprint=fingerprint,
        n_documents=n_documents,
    )


def _describe(paths: Sequence[Path]) -> str:
    size = human_bytes(sum(path.stat().st_size for path in paths))
    return f"{paths[0]} ({size})" if len(paths) == 1 else f"{len(paths)} files ({size})"


def _contents(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """(ending, hash of the contents) of each file: a copy is the same text, a changed letter is not."""
    found = []
    for path in paths:
        with path.open("rb") as handle:
            found.append((path.suffix, hashlib.file_digest(handle, "blake2b").hexdigest()))
    return found


def _read_files(paths: Sequence[Path], *, separator: str | None, jsonl_field: str) -> Iterator[str]:
    for path in paths:
        if path.suffix in _JSONL:
            yield from _json_lines(path, jsonl_field)
        else:
            text = _decode(path.read_bytes(), where=path)
            yield from [text] if separator is None else text.split(separator)


def _find(files: Sequence[str | Path]) -> tuple[list[Path], int]:
    """(text files in a fixed order, how many files in folders were left out)."""
    found: dict[Path, None] = {}
    n_skipped = 0
    for given in files:
        path = Path(given).expanduser()
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file())
            texts = [file for file in inside if not _hidden(file.relative_to(path)) and not _binary(file)]
            n_skipped += len(inside) - len(texts)
            if not texts:
                raise DataError(f"data.files={given}: no text file in that folder. Give a folder with text in it.")
        elif path.is_file():
            texts = [path]
        elif glob.has_magic(str(path)):
            texts = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
            if not texts:
                raise DataError(f"data.files={given}: no file matches. Quote the pattern, and check it with ls.")
        else:
            raise DataError(
                f"data.files={given} does not exist. Give a file, a folder, or a pattern like 'text/*.txt'."
            )
        found |= dict.fromkeys(file.resolve() for file in texts)
    return list(found), n_skipped


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _binary(path: Path) -> bool:
    with path.open("rb") as handle:
        return b"\0" in handle.read(_PROBE)


def _decode(data: bytes, *, where: Path, offset: int = 0) -> str:
    """UTF-8 text, a byte order mark dropped. Line ends stay as they are."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {offset + error.start}. Convert it "
            "(iconv -f latin1 -t utf-8), or leave it out."
        ) from error


def _json_lines(path: Path, field: str) -> Iterator[str]:
    """The `field` of every line that is not empty."""
    offset = 0
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            text = _decode(line, where=path, offset=offset)
            offset += len(line)
            if text.isspace():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number} is not JSON ({error}). Each line must be one JSON object.") from error
            if not isinstance(row, dict) or not isinstance(row.get(field), str):
                fields = row if isinstance(row, dict) else {}
                known = next((key for key, value in fields.items() if isinstance(value, str)), "NAME")
                raise DataError(
                    f"{path}:{number} has no text in the field {field!r}. Say which field holds it, for example "
                    f"data.jsonl_field={known}."
                )
            yield _whole_characters(row[field], where=f"{path}:{number}")


def _whole_characters(text: str, *, where: str) -> str:
    """The text, unless JSON's escapes spell half a character in it (as cutting a text can leave), which is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where} holds half a character ({half}). Remove it there, or leave that line out.") from error
    return text


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
