"""JSON lines and tables of two columns as records: dicts, and where each stands."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError
from onehop.data.compressed import ending_of
from onehop.data.find import JSONL, find_files, kind_of
from onehop.data.lines import lines_of, parsed

TSV = ".tsv"
Record = tuple[str, dict[str, Any]]  # "file:line" and what stands there


def record_files(files: Sequence[str | Path]) -> list[Path]:
    """The files that are named, or lie in a folder, or match a glob: .jsonl or .tsv, both also as .gz or .zst."""
    found, _ = find_files(files)
    for file in found:
        if kind_of(file) != JSONL[0] and ending_of(file) != TSV:
            raise DataError(f"{file} holds no records. Give JSON lines (.jsonl) or, for pairs, two columns (.tsv).")
    return found


def digest(files: Sequence[Path]) -> str:
    """Hex digits that change with the contents."""
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            found.update(hashlib.file_digest(handle, "sha256").digest())
    return found.hexdigest()


def read_records(files: Sequence[Path], *, columns: tuple[str, str] | None = None) -> Iterator[Record]:
    """Each line that is not blank; a .tsv line becomes {columns[0]: …, columns[1]: …} (None: refused)."""
    for file in files:
        is_table = ending_of(file) == TSV
        for where, text in lines_of(file):
            yield where, _columns(text.rstrip("\r\n"), columns, where) if is_table else _object(text, where)


def _object(text: str, where: str) -> dict[str, Any]:
    found = parsed(text, where=where)
    if not isinstance(found, dict):
        raise DataError(f'{where} holds no JSON object. Each line must be one, like {{"source": …, "target": …}}.')
    return found


def _columns(text: str, names: tuple[str, str] | None, where: str) -> dict[str, Any]:
    cells = text.split("\t")
    if names is None or len(cells) != 2:
        need = "conversations are JSON lines (.jsonl)" if names is None else "a pair has two, with one tab between"
        raise DataError(f"{where} has {len(cells)} columns: {need}.")
    return dict(zip(names, cells, strict=True))
