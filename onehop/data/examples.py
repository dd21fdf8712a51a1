"""Examples with marks: tokens of which only some are learned, and sources that belong to them. On disk as arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onehop.base.errors import DataError
from onehop.data.shards import SIDES, Shards
from onehop.data.split import Split

NO_SOURCE: Sequence[int] = ()


class Example(NamedTuple):
    """One example as tokens; `learned` tells which of them are targets, `source` is what is read before."""

    tokens: Sequence[int]
    learned: Sequence[bool]
    source: Sequence[int] = NO_SOURCE
    n_bytes: int = 0


@dataclass(frozen=True)
class Examples(Shards):
    """As Shards, with `learned` (N,) bool, and the sources, one after the other, example i's at source_starts[i]."""

    learned: np.ndarray
    source: np.ndarray
    source_starts: np.ndarray  # (n_documents + 1,)

    @property
    def n_targets(self) -> int:
        """Tokens that are predicted."""
        return int(np.count_nonzero(self.learned))

    @classmethod
    def open(cls, folder: str | Path, side: str) -> "Examples":
        """Map the arrays of a side. Raises DataError where one is missing or damaged."""
        found = {}
        for name in ARRAYS:
            file = Path(folder) / f"{side}.{name}.npy"
            try:
                found[name] = np.load(file, mmap_mode="r" if name in ("tokens", "learned", "source") else None)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{file} cannot be used: {error}. Delete {folder}; it is built again from the files."
                ) from error
        return cls(name=f"{folder}/{side}", n_bytes=int(found.pop("n_bytes")), **found)


ARRAYS = ("tokens", "learned", "starts", "source", "source_starts", "n_bytes")


def write_examples(folder: Path, examples: Sequence[Example], *, validation: float, seed: int) -> None:
    """Split the examples by number and seed, and write both sides as arrays into `folder`. Refuses fewer than two."""
    if len(examples) < 2:
        raise DataError(f"there are {len(examples)} examples: training takes one, and validation another. Give more.")
    held = Split.among(len(examples), fraction=validation, seed=seed).chosen(len(examples))
    for name, wanted in zip(SIDES, (False, True), strict=True):
        _write(folder, name, [example for example, is_held in zip(examples, held, strict=True) if is_held == wanted])


def _write(folder: Path, side: str, examples: Sequence[Example]) -> None:
    arrays = {
        "tokens": _flat([e.tokens for e in examples], np.int32),
        "learned": _flat([e.learned for e in examples], np.bool_),
        "starts": _starts([e.tokens for e in examples]),
        "source": _flat([e.source for e in examples], np.int32),
        "source_starts": _starts([e.source for e in examples]),
        "n_bytes": np.array(sum(e.n_bytes for e in examples)),
    }
    for name in ARRAYS:
        np.save(folder / f"{side}.{name}.npy", arrays[name], allow_pickle=False)


def _flat(rows: Iterable[Sequence[int]], dtype: type) -> np.ndarray:
    return np.concatenate([np.asarray(row, dtype=dtype) for row in rows] or [np.zeros(0, dtype=dtype)])


def _starts(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)
