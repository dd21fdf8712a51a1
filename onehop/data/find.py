"""Which files a recipe's files, folders and patterns stand for, and which reader each of them has."""

import glob
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from onehop.base.errors import DataError
from onehop.base.files import broken_link
from onehop.data.compressed import ending_of, reading
from onehop.data.tables import READERS as TABLES

JSONL = (".jsonl", ".ndjson")
_PROBE = 1 << 13  # bytes of a file in which a NUL byte marks it as binary
_SPLIT = re.compile(r"^(train|validation|valid|dev|test)\b")  # how the hub names the files of a split
_STATE, _INFO = "state.json", "dataset_info.json"  # of a folder that `datasets.save_to_disk` wrote
_SPLITS = "dataset_dict.json"  # of one with several splits
# Files by which a folder is known that is not somebody's text: that of a run, and that of a text which was encoded.
_OWN = (
    ("recipe.toml", "metrics.jsonl"),
    ("recipe.toml", "checkpoints"),
    ("source.json", "tokenizer.json", "train.bin"),
)


def kind_of(path: Path) -> str:
    """How a file is read: ".parquet", ".arrow", ".jsonl", or "" for plain text; compressed or not."""
    if path.suffix in TABLES:
        return path.suffix
    return JSONL[0] if ending_of(path) in JSONL else ""


def find_files(files: Sequence[str | Path]) -> tuple[list[Path], int]:
    """(files with text in a fixed order, each once; how many files in folders were left out)."""
    found: dict[Path, None] = {}
    n_skipped = 0
    for given in files:
        path = Path(given).expanduser()
        if path.is_dir():
            texts, n_left = _in_folder(path, given)
            n_skipped += n_left
        elif path.is_file():
            texts = [path]
        elif glob.has_magic(str(path)):
            texts = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
            fixed = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
            texts = _without_own(texts, root=fixed) if "**" in path.parts else texts
            if not texts:
                raise DataError(f"data.files={given}: no file matches. Quote the pattern, and check it with ls.")
        elif (link := broken_link(path)) is not None:
            raise DataError(f"data.files={given}: {link} is a link that leads nowhere. Mend it, or leave it out.")
        elif path.exists():
            raise DataError(f"data.files={given} is neither a file nor a folder. Give a file that can be read twice.")
        else:
            raise DataError(
                f"data.files={given} does not exist. Give a file, a folder, or a pattern like 'text/*.txt'."
            )
        found |= dict.fromkeys(file.resolve() for file in texts)
    return list(found), n_skipped


def _in_folder(folder: Path, given: str | Path) -> tuple[list[Path], int]:
    """(files with text, how many were left out): of a dataset its tables, of any other folder all that is text.

    What runs have written there is left out.
    """
    if (folder / _SPLITS).is_file():
        folder = _only_split(folder, given)
    inside = sorted(file for file in folder.rglob("*") if file.is_file())
    if (folder / _STATE).is_file() and (folder / _INFO).is_file():
        texts = _saved(folder)
    else:
        shown = _without_own([file for file in inside if not _hidden(file.relative_to(folder))], root=folder)
        tables = [file for file in shown if kind_of(file) in TABLES]
        texts = _one_split(tables, given) or [file for file in shown if not _binary(file)]
    if not texts:
        raise DataError(f"data.files={given}: no text file in that folder. Give a folder with text in it.")
    return texts, len(inside) - len(texts)


def _only_split(folder: Path, given: str | Path) -> Path:
    splits = _read_json(folder / _SPLITS, "splits")
    if len(splits) != 1:
        raise _which_split(given, splits, f"{given}/{splits[0] if splits else 'SPLIT'}")
    return folder / splits[0]


def _saved(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset, in its order."""
    rows = _read_json(folder / _STATE, "_data_files")
    names = [row["filename"] for row in rows if isinstance(row, dict) and isinstance(row.get("filename"), str)]
    files = [folder / Path(name).name for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing: {folder / _STATE} names it. Save the dataset again.")
    return files


def _one_split(tables: Sequence[Path], given: str | Path) -> list[Path]:
    """The tables, unless their names say that they are several splits of one dataset."""
    splits = {match[1]: None for file in tables if (match := _SPLIT.match(file.name))}
    if len(splits) > 1:
        first = next(file for file in tables if _SPLIT.match(file.name))
        pattern = first.parent / f"{next(iter(splits))}*{first.suffix}"
        raise _which_split(given, list(splits), f"'{pattern}'")
    return list(tables)


def _which_split(given: str | Path, splits: Sequence[str], example: str) -> DataError:
    return DataError(
        f"data.files={given} holds the splits {', '.join(splits)}. Name the one to learn from: data.files={example}."
    )


def _read_json(file: Path, key: str) -> list[Any]:
    try:
        found = json.loads(file.read_text())[key]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} does not list the dataset's {key.strip('_')}. Save the dataset again.") from error
    return list(found) if isinstance(found, list) else []


def _without_own(files: Sequence[Path], *, root: Path) -> list[Path]:
    """The files outside folders below `root`, which was asked for, in which a run keeps its own."""
    folders = {folder for file in files for folder in file.parents if root in folder.parents}
    own = {folder for folder in folders if any(all((folder / name).exists() for name in names) for names in _OWN)}
    return [file for file in files if not own.intersection(file.parents)]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _binary(path: Path) -> bool:
    with reading(path) as handle:
        return b"\0" in handle.read(_PROBE)
