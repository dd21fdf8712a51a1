"""JSON lines and tables of two columns as records: dicts, and where each stands."""

import glob
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError

JSONL, TSV = (".jsonl", ".ndjson"), ".tsv"
Record = tuple[str, dict[str, Any]]  # "file:line" and what stands there


def record_files(files: Sequence[str | Path]) -> list[Path]:
    """The .jsonl, .ndjson and .tsv files that are named, or lie in a folder, or match a glob, each once, in order."""
    found: dict[Path, None] = {}
    for given in files:
        path = Path(given)
        if path.is_file():
            inside = [path]
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix in (*JSONL, TSV))
        else:
            inside = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not inside:
            raise DataError(f"data.files={given}: no such file. Give .jsonl files, a folder of them, or a pattern.")
        found |= dict.fromkeys(file.resolve() for file in inside)
    for file in found:
        if file.suffix not in (*JSONL, TSV):
            raise DataError(f"{file} holds no records. Give JSON lines (.jsonl) or, for pairs, two columns (.tsv).")
    return list(found)


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
        with file.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if line.isspace():
                    continue
                where = f"{file}:{number}"
                try:
                    text = line.decode("utf-8").removeprefix("\ufeff").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"{where} is not UTF-8 text. Convert it (iconv -f latin1 -t utf-8).") from error
                yield where, _columns(text, columns, where) if file.suffix == TSV else _object(text, where)


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
