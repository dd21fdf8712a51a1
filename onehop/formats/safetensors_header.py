"""Headers of safetensors files: what tensors lie there, in one file or in shards with an index. No torch.

Headers are checked before any data is read, so a damaged file is refused with its name and what is wrong, at once.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.base.units import human_bytes
from onehop.formats.folder import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes; the format's own limit
MAX_NAME, MAX_DIMS = 500, 16  # far beyond any real tensor's
# Types of weights, as a header and as onehop name them.
NAMES: Mapping[str, str] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Bytes per number of every dtype that a header may name; those without a row above are no weights of ours.
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
}


@dataclass(frozen=True)
class Entry:
    """What a header says of one tensor, and the file it lies in."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int = 0  # its first byte in the file

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]


def dtype_of(entries: Mapping[str, Entry]) -> str:
    """The type that most of the bytes have, in which a model is loaded where none is asked for."""
    weight: dict[str, int] = {}
    for entry in entries.values():
        if entry.dtype in NAMES:
            weight[entry.dtype] = weight.get(entry.dtype, 0) + entry.nbytes
    return NAMES[max(weight, key=lambda name: weight[name])] if weight else "float32"


def stored_dtype(folder: Path) -> str | None:
    """The type in which a model's folder is loaded where none is asked for; None where its weights are not here."""
    if (folder / SINGLE).is_file():
        return dtype_of(read_header(folder / SINGLE))
    return dtype_of(read_shards(folder)) if (folder / INDEX).is_file() else None


def read_header(file: Path) -> dict[str, Entry]:
    """What one safetensors file holds. Raises CheckpointError naming the file and what is wrong with it."""
    size = file.stat().st_size
    with open(file, "rb") as handle:
        start = handle.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise damaged(file, f"it ends inside its header, after {size} bytes")
        if length > MAX_HEADER:
            raise damaged(file, f"its header claims {human_bytes(length)}")
        raw = handle.read(length)
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"its header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise damaged(file, "its header is no table")
    table.pop("__metadata__", None)
    if not all(name.isprintable() and len(name) <= MAX_NAME for name in table):
        raise damaged(file, "its header has a tensor whose name is no name")
    entries = {name: _entry(file, name, row, size - 8 - length) for name, row in table.items()}
    _check_spans(file, table, size - 8 - length)
    return entries


def _entry(file: Path, name: str, row: Any, room: int) -> Entry:
    """One row of a header; `room` is how many bytes of data the file has."""
    try:
        dtype, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise damaged(file, f"its header describes {name} incompletely") from error
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise CheckpointError(f"{file}: {name} has the dtype {dtype!r}, which is not known. Known: {', '.join(SIZES)}.")
    whole = all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end))
    if not whole or begin > end or len(shape) > MAX_DIMS:
        raise damaged(file, f"its header gives {name} an impossible shape or place")
    if end > room:
        raise damaged(file, f"{name} should end after {end} bytes of data, but there are only {room}")
    entry = Entry(dtype, shape, file, file.stat().st_size - room + begin)
    if entry.nbytes != end - begin:
        raise damaged(
            file, f"{name} is {dtype} {list(shape)}, {entry.nbytes} bytes, but {end - begin} are set aside for it"
        )
    return entry


def _check_spans(file: Path, table: Mapping[str, Any], room: int) -> None:
    """Tensors lie one after another, without overlaps or gaps."""
    at = 0
    for begin, end, name in sorted((*row["data_offsets"], name) for name, row in table.items()):
        if begin != at:
            raise damaged(file, f"{name} begins at byte {begin} of the data, where {at} is expected")
        at = end
    if at != room:
        raise damaged(file, f"its tensors end after {at} bytes of data, but there are {room}")


def damaged(file: Path, what: str) -> CheckpointError:
    """What is raised for a file that is not whole."""
    return CheckpointError(f"{file} is truncated or damaged: {what}. Get it again from its source.")


def weight_map(index: Path) -> dict[str, str]:
    """Which file holds each tensor, as an index says. Raises CheckpointError where it does not."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{index} has no weight_map. Get it again from its source.")
    return places


def read_shards(folder: Path) -> dict[str, Entry]:
    """What all files hold that a folder's index names."""
    index = folder / INDEX
    places = weight_map(index)
    entries: dict[str, Entry] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or file in ("", ".", "..") or "\\" in file:
            raise CheckpointError(
                f"{index} names {file!r}, which lies outside the folder. Do not trust this checkpoint."
            )
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder / file} is missing: {INDEX} names it. Get it from the model's source.")
        for name, entry in read_header(folder / file).items():
            if name in entries:
                raise CheckpointError(
                    f"{folder}: {name} lies in {entries[name].file.name} and in {file}. Get both again."
                )
            entries[name] = entry
    for name, file in places.items():
        if name not in entries or entries[name].file.name != file:
            raise CheckpointError(f"{folder / file} should hold {name}, as {INDEX} says, but does not. Get both again.")
    return entries
