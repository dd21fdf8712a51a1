"""The Python standard library as a corpus: the running interpreter's own sources, without its tests."""

import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from onehop.base.errors import DataError

# Folders that are no part of the library (installed packages, caches) or hold its tests, at any depth.
LEFT_OUT = frozenset(("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"))


def source_files(root: Path | None = None) -> list[Path]:
    """The `.py` files of the standard library below `root` (default: of the running interpreter), sorted by path.

    Tests, installed packages and what the build of this interpreter generated are left out. Refuses (DataError) an
    interpreter that keeps no sources on disk.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = [path.relative_to(root) for path in root.rglob("*.py") if path.is_file()]
    kept = [path for path in found if not LEFT_OUT.intersection(path.parts) and not _generated(path)]
    if not kept:
        raise DataError(
            f"{sys.executable} has no sources of its standard library in {root} (a zipped or frozen Python). "
            "Use an ordinary Python, or give your own text with data.files=FOLDER."
        )
    return [root / path for path in sorted(kept, key=lambda path: path.as_posix())]


def documents(seed: int, *, limit: int | None = None, root: Path | None = None) -> Iterator[str]:
    """Each file as one document, sorted by path; `limit` takes that many, drawn by `seed`, in the same order.

    Empty files and files that are not UTF-8 are skipped. Refuses a `limit` above the number of documents.
    """
    texts = [text for path in source_files(root) if (text := _text(path))]
    chosen = list(range(len(texts)))
    if limit is not None:
        if limit > len(texts):
            raise DataError(
                f"data.n_documents={limit}: python-stdlib has {len(texts)} documents. Ask for fewer or all."
            )
        chosen = sorted(random.Random(seed).sample(chosen, limit))
    return (texts[index] for index in chosen)


def _generated(path: Path) -> bool:
    return path.name.startswith("_sysconfigdata") or path.parts[0].startswith("config-")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
