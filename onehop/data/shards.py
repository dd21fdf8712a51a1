"""Token shards on disk: all documents of one side of the split as one memory-mapped array, and where each begins."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from onehop.base.errors import DataError
from onehop.data.sources import Progress
from onehop.text.tokenizer import Tokenizer

Tag = TypeVar("Tag")

FORMAT = 1
SIDES = ("train", "validation")
_AT_ONCE = 1 << 20  # characters that are encoded together, on all cores


@dataclass(frozen=True)
class Shards:
    """Documents as tokens (N,), document i at starts[i]:starts[i + 1], its begin and end tokens included.

    n_bytes: UTF-8 bytes of their text, which turns a loss per token into bits per byte.
    """

    name: str
    tokens: np.ndarray
    starts: np.ndarray  # (n_documents + 1,)
    n_bytes: int

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_documents(self) -> int:
        return len(self.starts) - 1

    @property
    def n_targets(self) -> int:
        """Tokens that are predicted: all but the first of each document."""
        return self.n_tokens - self.n_documents

    def bits_per_byte(self, nats_per_target: float) -> float:
        """The loss of one target -> bits for one byte of text."""
        return nats_per_target / float(np.log(2)) * self.n_targets / self.n_bytes

    @classmethod
    def open(cls, folder: str | Path, side: str) -> "Shards":
        """Map the shards of `side` ("train", "validation"). Refuses what is missing, truncated or damaged, by name."""
        folder = Path(folder)
        about = _read_about(folder / f"{side}.json")
        arrays = []
        for ending, dtype, length in (
            ("bin", about["dtype"], about["n_tokens"]),
            ("starts", "int64", about["n_documents"] + 1),
        ):
            file = folder / f"{side}.{ending}"
            _check_size(file, length * np.dtype(dtype).itemsize)
            array = np.memmap(file, dtype=dtype, mode="r", shape=(length,))
            if zlib.crc32(array.data) != about["crc32"][ending]:
                raise _damaged(file, "its contents do not match their checksum")
            arrays.append(array)
        return cls(f"{folder}/{side}", arrays[0], np.asarray(arrays[1]), about["n_bytes"])


def write_shards(
    folder: Path,
    documents: Iterable[tuple[str, bool]],
    tokenizer: Tokenizer,
    *,
    sides: Sequence[str] = SIDES,
    progress: Progress | None = None,
) -> None:
    """Encode (document, whether it is for validation) into the shards of `sides` in `folder`, which must exist.

    Documents for another side are left out. Memory stays bounded: a group of documents is encoded while the one before
    is written and the one after is read. Refuses a side without any token.
    """
    with ExitStack() as stack:
        files = {side: stack.enter_context((folder / f"{side}.bin").open("wb")) for side in sides}
        written = {side: _Side(file, dtype_of(tokenizer)) for side, file in files.items()}
        kept = (row for row in documents if SIDES[row[1]] in written)
        n = 0
        for group in encoded(kept, tokenizer):
            for ids, is_validation, n_bytes in group:
                if len(ids):
                    written[SIDES[is_validation]].add(ids, n_bytes=n_bytes)
            n += len(group)
            if progress is not None:
                progress("documents encoded", n, None)
    for name, side in written.items():
        if not side.starts[-1]:
            raise DataError(
                f"the {name} side of the split got none of {n} documents. Change data.validation or data.seed, or give "
                "more text."
            )
        side.finish(folder, name, about={"tokenizer": tokenizer.fingerprint})


def encoded(documents: Iterable[tuple[str, Tag]], tokenizer: Tokenizer) -> Iterator[list[tuple[np.ndarray, Tag, int]]]:
    """(document, tag) -> groups of (its tokens, tag, its bytes), in order; no tokens where the text has none.

    A document becomes [begin] tokens [end]; a tokenizer with only one of the two has it at both ends, one with neither
    (characters) has no borders. `tokenizers` spreads a group over all cores and lets Python go on meanwhile, so that
    reading and storing cost time only where they take longer than encoding.
    """
    before, after = _borders(tokenizer)
    dtype = dtype_of(tokenizer)

    def finished(group: list[tuple[str, Tag]], ids: list[list[int]]) -> list[tuple[np.ndarray, Tag, int]]:
        rows = zip(group, ids, strict=True)
        return [
            (np.array([*before, *found, *after] if found else [], dtype=dtype), tag, len(text.encode()))
            for (text, tag), found in rows
        ]

    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: tuple[list[tuple[str, Tag]], Future[list[list[int]]]] | None = None
        for group in _groups(documents):
            coming = pool.submit(tokenizer.encode_many, [text for text, _ in group])
            if waiting is not None:
                yield finished(waiting[0], waiting[1].result())
            waiting = group, coming
        if waiting is not None:
            yield finished(waiting[0], waiting[1].result())


def dtype_of(tokenizer: Tokenizer) -> np.dtype:
    """The smallest unsigned integers that hold all its ids."""
    return np.dtype("uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32")


class _Side:
    """One .bin file while it is written."""

    def __init__(self, file: IO[bytes], dtype: np.dtype):
        self.file, self.dtype = file, dtype
        self.starts = [0]
        self.n_bytes, self.crc32 = 0, 0

    def add(self, ids: np.ndarray, *, n_bytes: int) -> None:
        data = ids.tobytes()
        self.file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.starts.append(self.starts[-1] + len(ids))
        self.n_bytes += n_bytes

    def finish(self, folder: Path, name: str, *, about: dict[str, Any]) -> None:
        starts = np.array(self.starts, dtype=np.int64)
        (folder / f"{name}.starts").write_bytes(starts.tobytes())
        about |= {
            "format": FORMAT,
            "dtype": self.dtype.name,
            "n_tokens": self.starts[-1],
            "n_documents": len(self.starts) - 1,
            "n_bytes": self.n_bytes,
            "crc32": {"bin": self.crc32, "starts": zlib.crc32(starts.data)},
        }
        (folder / f"{name}.json").write_text(json.dumps(about, indent=2) + "\n")


def _borders(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    before, after = (bos if bos is not None else eos), (eos if eos is not None else bos)
    return [] if before is None else [before], [] if after is None else [after]


def _groups(documents: Iterable[tuple[str, Tag]]) -> Iterator[list[tuple[str, Tag]]]:
    """Documents in groups of about `_AT_ONCE` characters."""
    group: list[tuple[str, Tag]] = []
    size = 0
    for row in documents:
        group.append(row)
        size += len(row[0])
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _read_about(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise _damaged(file, "it is missing")
    try:
        about = json.loads(file.read_text())
        if about["format"] != FORMAT:
            raise _damaged(file, f"it has format {about['format']}, and this onehop reads {FORMAT}")
        return {key: about[key] for key in ("dtype", "n_tokens", "n_documents", "n_bytes", "crc32")}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, "it is not the description of token shards") from error


def _check_size(file: Path, expected: int) -> None:
    if not file.is_file():
        raise _damaged(file, "it is missing")
    if (size := file.stat().st_size) != expected:
        raise _damaged(file, f"it holds {size} bytes instead of {expected}")


def _damaged(file: Path, reason: str) -> DataError:
    return DataError(f"{file} cannot be used: {reason}. Delete {file.parent}; it is built again from the text.")
