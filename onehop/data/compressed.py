"""The bytes of a file, decompressed while they are read where its name ends in .gz or .zst."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from onehop.base.errors import DataError, MissingExtra

COMPRESSED = (".gz", ".zst")
_PART = 1 << 12  # compressed bytes that are decompressed at once: as zstd, up to 128 kB of text for four of them
_LARGEST_WINDOW = 1 << 31  # bytes: files that were made with zstd --long


def ending_of(path: Path) -> str:
    """The ending of a file's name or, where it is compressed, of what is inside: "a.jsonl.gz" -> ".jsonl"."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The file's contents as a binary stream, in bounded memory. Refuses (DataError) one that is damaged or cut off."""
    with path.open("rb") as file:
        if path.suffix == ".gz":
            yield from _guarded(path, gzip.GzipFile(fileobj=file), (EOFError, gzip.BadGzipFile, zlib.error))
        elif path.suffix == ".zst":
            zstandard = _zstandard(path)
            new = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj
            yield from _guarded(path, _Frames(file, new), (EOFError, zstandard.ZstdError))
        else:
            yield file


def _guarded(path: Path, stream: io.RawIOBase | gzip.GzipFile, faults: tuple[type[Exception], ...]) -> Iterator[Any]:
    try:
        yield io.BufferedReader(stream)  # a GzipFile reads as a raw stream does
    except faults as error:
        raise DataError(
            f"{path} is damaged or cut off ({str(error).rstrip('.')}). Fetch it again, or leave it out."
        ) from error


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", extra="train", needed_for=f"reading {path.name}") from None
    return zstandard


class _Frames(io.RawIOBase):
    """The zstd frames of a file one after the other. Raises EOFError where the last one is cut off."""

    def __init__(self, file: BinaryIO, new: Callable[[], Any]):
        self._file, self._new = file, new
        self._frame: Any = None
        self._raw = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._raw = self._raw or self._file.read(_PART)
            if not self._raw:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._frame = self._frame or self._new()
            self._ready, self._raw = memoryview(self._frame.decompress(self._raw)), b""
            if self._frame.eof:
                self._raw, self._frame = self._frame.unused_data, None
        n = min(len(buffer), len(self._ready))
        buffer[:n], self._ready = self._ready[:n], self._ready[n:]
        return n
