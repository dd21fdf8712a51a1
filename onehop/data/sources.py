"""Files, folders, globs and the built-in corpora -> documents."""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onehop.base.errors import DataError
from onehop.base.units import human_bytes
from onehop.data.compressed import COMPRESSED
from onehop.data.corpora import CORPORA, Corpus
from onehop.data.find import JSONL, find_files, kind_of
from onehop.data.lines import json_documents, text_documents
from onehop.data.tables import READERS as TABLES

Progress = Callable[[str, int, int | None], None]  # what is being done, how far it is, out of how many (if known)

_FIELD = "text"  # of a JSON line or a table, where none is named
_ENDS = 1 << 16  # bytes at both ends of a file by which a stream is recognised
_GROWTH = 4  # bytes of text in a compressed byte, about


@dataclass(frozen=True)
class Place:
    """Where a reader stands: before document `document` (from 0, empty ones too) of file `file`.

    number: documents before it that are more than white space.
    """

    file: int = 0
    document: int = 0
    number: int = 0


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again in the same order, and what is known of them beforehand.

    readers: one for each file. n_skipped: hidden and binary files that a folder holds besides. fingerprint(): hex
    digits that change when a document could change. n_bytes: of all text, about; 0 for what is made while it is read.
    dropped: numbers of documents that are left out (duplicates).
    """

    description: str
    readers: tuple[Callable[[], Iterator[str]], ...]
    fingerprint: Callable[[], str]
    n_documents: int | None = None
    n_skipped: int = 0
    n_bytes: int = 0
    dropped: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[str]:
        """The documents that are more than white space and not dropped, one by one, at most `n_documents`."""
        found = (document for _, document in self.placed() if document)
        if self.dropped:
            found = (text for number, text in enumerate(found) if number not in self.dropped)
        return itertools.islice(found, self.n_documents)

    def placed(self, start: Place = Place()) -> Iterator[tuple[Place, str]]:
        """(the place behind it, a document) from `start` on; "" for one of white space. Files before it stay closed."""
        number = start.number
        for file in range(start.file, len(self.readers)):
            first = start.document if file == start.file else 0
            for n, document in enumerate(itertools.islice(self.readers[file](), first, None), start=first + 1):
                kept = bool(document) and not document.isspace()
                number += kept
                yield Place(file, n, number), document if kept else ""


def open_source(
    *,
    files: Sequence[str | Path] = (),
    corpus: str | None = None,
    n_documents: int | None = None,
    separator: str | None = None,
    text_field: str = _FIELD,
    seed: int = 0,
    stream: bool = False,
) -> Source:
    """The documents of `files` (paths, folders, globs) or of the built-in `corpus`, the first `n_documents` of them.

    A plain text file is one document, or is split at every `separator`; each line of a .jsonl file is one, taken from
    `text_field`, and each row of a .parquet or .arrow file. Text and JSON lines may be compressed (.gz, .zst). Files
    are read in the order given, the contents of a folder or a glob sorted by path, each file once. stream: the corpus
    may be endless, and files are recognised by their sizes and ends, without reading all of them. Refuses both or
    neither, a missing file, a pattern that matches nothing, an endless corpus without a number; while reading: damage,
    bytes that are not UTF-8, a JSON line that is broken or lacks the field, a missing column.
    """
    _check_values(n_documents, seed, separator)
    if corpus is not None and files:
        raise DataError(f"data.corpus={corpus} and data.files={','.join(map(str, files))}: give one of the two.")
    if corpus is not None:
        found = CORPORA.get(corpus)
        return _built_in(found, seed=seed, n_documents=n_documents, stream=stream)
    if not files:
        raise DataError(f"there is no text: give data.files=PATH or data.corpus (one of {', '.join(CORPORA.names())}).")
    paths, n_skipped = find_files(files)
    _refuse_unheard(paths, separator=separator, text_field=text_field)
    return Source(
        _describe(paths),
        readers=tuple(_reader(path, separator, text_field) for path in paths),
        fingerprint=lambda: _digest(_contents(paths, whole=not stream), separator, text_field, n_documents),
        n_documents=n_documents,
        n_skipped=n_skipped,
        n_bytes=sum(path.stat().st_size * (1 if _is_plain(path) else _GROWTH) for path in paths),
    )


def without_duplicates(sources: Sequence[Source], *, progress: Progress | None = None) -> list[Source]:
    """The sources without documents that are equal to an earlier one, in the same or an earlier source.

    Reads all of them once. A document is remembered by 128 bits of its hash (about 100 bytes of memory each).
    """
    seen: set[bytes] = set()
    found = []
    for source in sources:
        dropped: set[int] = set()
        everything = replace(source, n_documents=None)
        for number, document in enumerate(everything):
            if source.n_documents is not None and number - len(dropped) >= source.n_documents:
                break
            mark = hashlib.blake2b(document.encode(), digest_size=16).digest()
            if mark in seen:
                dropped.add(number)
            seen.add(mark)
            if progress is not None and number % 1000 == 999:
                progress("documents compared", number + 1, None)
        found.append(replace(source, dropped=frozenset(dropped)))
    return found


def _check_values(n_documents: int | None, seed: int, separator: str | None) -> None:
    if separator == "":
        raise DataError("data.separator is empty. Give the text that stands between two documents, or leave it out.")
    if n_documents is not None and n_documents < 1:
        raise DataError(f"n_documents={n_documents} leaves no document to read. Use 1 or more, or leave it out.")
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more.")


def _refuse_unheard(paths: Sequence[Path], *, separator: str | None, text_field: str) -> None:
    """Refuse an option that none of the files listens to."""
    kinds = set(map(kind_of, paths))
    if separator is not None and "" not in kinds:
        raise DataError(
            f"data.separator={separator!r} has no effect: each line of a {JSONL[0]} file and each row of a table is a "
            "document. Leave it out."
        )
    if text_field != _FIELD and kinds == {""}:
        raise DataError(
            f"data.text_field={text_field} has no effect: no file ends in {', '.join((JSONL[0], *TABLES))}. Leave it "
            "out."
        )


def _built_in(corpus: Corpus, *, seed: int, n_documents: int | None, stream: bool) -> Source:
    if corpus.endless and n_documents is None and not stream:
        raise DataError(
            f"the corpus {corpus.name} is endless. Say how many documents to take: data.n_documents=20000, or let it "
            "be told while training: data.stream=true."
        )

    def fingerprint() -> str:
        """From the numbers and the first documents, which change with the code that tells them."""
        probe = list(itertools.islice(corpus.documents(seed, limit=n_documents), 32))
        return _digest(corpus.name, seed, n_documents, sys.version, probe)

    return Source(
        f"the corpus {corpus.name}",
        readers=(partial(corpus.documents, seed, limit=n_documents),),
        fingerprint=fingerprint,
        n_documents=n_documents,
    )


def _describe(paths: Sequence[Path]) -> str:
    size = human_bytes(sum(path.stat().st_size for path in paths))
    return f"{paths[0]} ({size})" if len(paths) == 1 else f"{len(paths)} files ({size})"


def _contents(paths: Sequence[Path], *, whole: bool) -> list[tuple[str, str]]:
    """(kind, hash of the contents) of each file: a copy is the same text, a changed letter is not.

    Where not the whole file is read, its size and both its ends stand for it.
    """
    found = []
    for path in paths:
        kind = kind_of(path) + ("" if _is_plain(path) else path.suffix)
        with path.open("rb") as handle:
            if whole:
                found.append((kind, hashlib.file_digest(handle, "blake2b").hexdigest()))
                continue
            size = path.stat().st_size
            ends = handle.read(_ENDS)
            handle.seek(max(size - _ENDS, 0))
            found.append((kind, f"{size} {hashlib.blake2b(ends + handle.read(_ENDS)).hexdigest()}"))
    return found


def _is_plain(path: Path) -> bool:
    return path.suffix not in (*COMPRESSED, *TABLES)


def _reader(path: Path, separator: str | None, text_field: str) -> Callable[[], Iterator[str]]:
    kind = kind_of(path)
    if kind in TABLES:
        return partial(TABLES[kind], path, text_field)
    return partial(json_documents, path, text_field) if kind else partial(text_documents, path, separator)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
