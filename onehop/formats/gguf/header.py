"""What a GGUF file says before its data: metadata by key, and every tensor's type, shape and place. No torch.

The format: ggml's docs/gguf.md, versions 2 and 3. Everything is checked against the file's size before it is believed,
so that a damaged file is refused at once and in bounded memory.
"""

import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.formats.keys import plain

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
MAX_KEY, MAX_DIMS, MAX_ARRAY = 500, 4, 20_000_000  # far beyond any real file's

# Number of a type -> its name, how many numbers lie in one block, and the block's bytes.
TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
NAMES: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # of those that are plain numbers
SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOAT32, STRING, ARRAY = 6, 8, 9


@dataclass(frozen=True)
class Place:
    """One tensor: its type, its shape (rows first), and where its bytes lie in which file."""

    type: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int
    file: Path


@dataclass(frozen=True)
class Header:
    """A file's metadata and its tensors; of a model in several files, the first one's name."""

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Place]

    @property
    def loads(self) -> str:
        """The type that holds most of the file's numbers without rounding: float32 for quantised ones."""
        weight: dict[str, int] = {}
        for place in self.tensors.values():
            dtype = NAMES.get(place.type, "float32")
            weight[dtype] = weight.get(dtype, 0) + place.nbytes
        return max(weight, key=lambda dtype: weight[dtype])

    def numbers(self, name: str) -> tuple[float, ...]:
        """A small float32 tensor that belongs to the config. Raises CheckpointError for any other."""
        place = self.tensors[name]
        if place.type != "F32" or len(place.shape) != 1 or place.nbytes > 1 << 16:
            raise CheckpointError(f"{self.file}: {name} should be a short list of F32 numbers. Get the file again.")
        with open(place.file, "rb") as handle:
            handle.seek(place.begin)
            return tuple(map(shortest, struct.unpack(f"<{place.shape[0]}f", handle.read(place.nbytes))))


def read_header(file: Path) -> Header:
    """The header of a GGUF file. Raises CheckpointError naming the file and what is wrong with it."""
    if file.stat().st_size < 24:
        raise _damaged(file, f"it has only {file.stat().st_size} bytes")
    with open(file, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(file, data)
        try:
            return _read(reader)
        except struct.error as error:
            raise _damaged(file, f"it ends inside its header, after {len(data)} bytes") from error


class _Reader:
    """A place in a mapped file, from which numbers and strings are taken one after another."""

    def __init__(self, file: Path, data: mmap.mmap):
        self.file, self.data, self.at = file, data, 0

    def take(self, form: str) -> Any:
        """One number."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def string(self, longest: int | None = None) -> str:
        """A length and so many bytes of UTF-8."""
        n = self.take("Q")
        if n > len(self.data) - self.at or (longest is not None and n > longest):
            raise _damaged(self.file, f"a text of {n} bytes is announced at byte {self.at}")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8", errors="replace")

    def _strings(self, n: int) -> list[str]:
        """`n` texts; there may be a million, so the loop does no more than it must."""
        data, at, size, length = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        out = []
        for _ in range(n):
            (width,) = length(data, at)
            at += 8 + width
            if at > size:
                raise _damaged(self.file, f"a text of {width} bytes is announced at byte {at - width}")
            out.append(data[at - width : at].decode("utf-8", errors="replace"))
        self.at = at
        return out

    def value(self, kind: int) -> Any:
        """A value of a metadata type; float32 numbers as the shortest decimal that means them."""
        if kind in SCALARS:
            value = self.take(SCALARS[kind])
            return shortest(value) if kind == FLOAT32 else value
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise _damaged(self.file, f"byte {self.at} announces a value of the unknown type {kind}")
        return self._array(self.take("I"), self.take("Q"))

    def _array(self, kind: int, n: int) -> list[Any]:
        width = struct.calcsize(f"<{SCALARS[kind]}") if kind in SCALARS else 8  # a text is at least its length
        if n > MAX_ARRAY or n * width > len(self.data) - self.at:
            raise _damaged(self.file, f"a list of {n} values is announced at byte {self.at}")
        if kind == STRING:
            return self._strings(n)
        if kind not in SCALARS:
            raise _damaged(self.file, f"byte {self.at} announces a list of the unknown type {kind}")
        values = list(struct.unpack_from(f"<{n}{SCALARS[kind]}", self.data, self.at))
        self.at += n * width
        return values


def _read(reader: _Reader) -> Header:
    magic, version = bytes(reader.data[:4]), struct.unpack_from("<I", reader.data, 4)[0]
    reader.at = 8
    if magic != MAGIC:
        raise CheckpointError(f"{reader.file} is no GGUF file: it begins with {magic!r}. Get it again from its source.")
    if version not in VERSIONS:
        what = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        raise CheckpointError(f"{reader.file} is {what}; versions {VERSIONS} in little-endian can be read. Convert it.")
    n_tensors, n_keys = reader.take("Q"), reader.take("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = reader.string(MAX_KEY)
        if key in metadata or not key.isprintable():
            raise _damaged(reader.file, f"the key {plain(key)} is there twice, or is no key")
        metadata[key] = reader.value(reader.take("I"))
    rows: dict[str, Any] = {}
    for _ in range(n_tensors):
        name, row = _row(reader)
        if name in rows or not name.isprintable():
            raise _damaged(reader.file, f"the tensor {plain(name)} is there twice, or has no name")
        rows[name] = row
    return Header(reader.file, metadata, _places(reader, rows, metadata.get(ALIGNMENT, 32)))


def _row(reader: _Reader) -> tuple[str, tuple[tuple[int, ...], int, int]]:
    name = reader.string(MAX_KEY)
    n_dims = reader.take("I")
    if n_dims > MAX_DIMS:
        raise _damaged(reader.file, f"{plain(name)} has {n_dims} dimensions")
    shape = tuple(reader.take("Q") for _ in range(n_dims))[::-1]  # the file names the shortest stride first
    return name, (shape, reader.take("I"), reader.take("Q"))


def _places(reader: _Reader, rows: Mapping[str, Any], alignment: Any) -> dict[str, Place]:
    """Where each tensor lies: inside the file, and none over another."""
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise _damaged(reader.file, f"{ALIGNMENT}={alignment!r} is no power of two from 8 on")
    start, size = -(-reader.at // alignment) * alignment, len(reader.data)
    places: dict[str, Place] = {}
    end, before = start, "the header"
    for name, (shape, kind, offset) in sorted(rows.items(), key=lambda row: row[1][2]):
        if kind not in TYPES:
            known = ", ".join(sorted(row[0] for row in TYPES.values()))
            raise CheckpointError(
                f"{reader.file}: {plain(name)} has the type number {kind}, which is not known. Known: {known}."
            )
        type_, block, width = TYPES[kind]
        if not shape or 0 in shape or shape[-1] % block or any(n >= 2**48 for n in shape):
            raise _damaged(reader.file, f"{plain(name)} has the impossible shape {list(shape)} for {type_}")
        nbytes, begin = prod(shape) // block * width, start + offset
        if begin < end:
            raise _damaged(reader.file, f"{plain(name)} begins at byte {begin}, inside {before}")
        if begin + nbytes > size:
            raise _damaged(reader.file, f"{plain(name)} should end at byte {begin + nbytes}, but the file has {size}")
        places[name] = Place(type_, shape, begin, nbytes, reader.file)
        end, before = begin + nbytes, plain(name)
    return {name: places[name] for name in rows}


def shortest(value: float) -> float:
    """A float32 number as the decimal with the fewest digits that rounds to it: 1e-05 and not 9.999999747378752e-06."""
    if value - value != 0:  # infinities and NaN
        return value
    return next(found for found in (float(f"{value:.{n}g}") for n in range(6, 18)) if float32(found) == value)


def float32(value: float) -> float:
    """The float32 number nearest to `value`; beyond the largest, infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def uniform(values: Iterable[Any]) -> Any:
    """A list whose values are all the same -> that value; any other list as it is."""
    values = list(values)
    return values[0] if values and all(value == values[0] for value in values) else values


def _damaged(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{file} is truncated or damaged: {what}. Get it again from its source.")
