"""JSON lines and tables of two columns as records: dicts, and where each stands."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError
from onehop.data.compressed import COMPRESSED, reading
from onehop.data.find import JSONL, find_files, kind_of
from onehop.data.lines import decode

TSV = ".tsv"
Record = tuple[str, dict[str, Any]]  # "file:line" and what stands there


def record_files(files: Sequence[str | Path]) -> list[Path]:
    """The files that are named, or lie in a folder, or match a glob: .jsonl or .tsv, both also as .gz or .zst."""
    found, _ = find_files(files)
    for file in found:
        if kind_of(file) != JSONL[0] and not _is_table(file):
            raise DataError(f"{file} holds no records. Give JSON lines (.jsonl) or, for pairs, two columns (.tsv).")
    return found


def _is_table(file: Path) -> bool:
    return (Path(file.stem).suffix if file.suffix in COMPRESSED else file.suffix) == TSV


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
        offset = 0
        with reading(file) as handle:
            for number, line in enumerate(handle, start=1):
                text = decode(line, where=file, offset=offset)
                offset += len(line)
                if text.isspace():
                    continue
                where = f"{file}:{number}"
                yield where, _columns(text.rstrip("\r\n"), columns, where) if _is_table(file) else _object(text, where)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({error}). Each line must be one JSON object.") from error
    if not isinstance(found, dict):
        raise DataError(f'{where} holds no JSON object. Each line must be one, like {{"source": …, "target": …}}.')
    return found


def _columns(text: str, names: tuple[str, str] | None, where: str) -> dict[str, Any]:
    cells = text.split("\t")
    if names is None or len(cells) != 2:
        need = "conversations are JSON lines (.jsonl)" if names is None else "a pair has two, with one tab between"
        raise DataError(f"{where} has {len(cells)} columns: {need}.")
    return dict(zip(names, cells, strict=True))
