"""Tensors in safetensors files: one file, or shards with an index.

Headers are checked before any data is read, so a damaged file is refused with its name and what is wrong, at once. Data
is memory-mapped and read tensor by tensor.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.base.units import human_bytes
from onehop.formats.folder import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # bytes; the format's own limit
BUFFER = 1 << 18  # numbers that are converted at a time
MOST_AT_ONCE = 1 << 28  # bytes of one system call; Linux reads at most 2 GB
MAX_NAME, MAX_DIMS = 500, 16  # far beyond any real tensor's
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# Bytes per number of every dtype that a header may name; those without a row above are no weights of ours.
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
}
CONVERT = (
    'python -c "import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in '
    "torch.load('pytorch_model.bin', weights_only=True).items()}, 'model.safetensors')\""
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


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


class Tensors(Protocol):
    """The tensors of a checkpoint, in files of whatever format."""

    entries: Mapping[str, Entry]
    where: Path

    def dtype(self) -> torch.dtype:
        """The dtype that a model takes where none is asked for."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the files."""

    def read(self, name: str) -> Tensor:
        """One tensor, maybe as a view of a mapped file: copy it before the files are closed."""

    def read_into(self, name: str, out: Tensor) -> None:
        """One tensor into `out`, as `out.copy_(read(name))`."""


class TensorFiles:
    """The tensors of a checkpoint by name: `entries` from the headers, `read` one at a time. A context manager."""

    def __init__(self, entries: Mapping[str, Entry], where: Path):
        self.entries, self.where = entries, where
        self._open: dict[Path, Any] = {}
        self._buffers: dict[torch.dtype, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries.values())

    def dtype(self) -> torch.dtype:
        """The dtype that most of the bytes have."""
        weight: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.dtype in DTYPES:
                weight[entry.dtype] = weight.get(entry.dtype, 0) + entry.nbytes
        return DTYPES[max(weight, key=lambda name: weight[name])] if weight else torch.float32

    def read(self, name: str) -> Tensor:
        """One tensor, as a view of the mapped file: copy it before the files are closed."""
        file = self.entries[name].file
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt").__enter__()
            found: Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged ({error}). Get it again from its source.") from error
        return found

    def read_into(self, name: str, out: Tensor) -> None:
        """One tensor into `out`, which is contiguous, as `out.copy_(read(name))`.

        Pages of a mapped file come one by one, which takes twice as long as reading them into the machine's own memory;
        a few numbers at a time pass through a buffer where the dtype changes.
        """
        entry = self.entries[name]
        if out.device.type != "cpu" or entry.dtype not in DTYPES:
            out.copy_(self.read(name))
            return
        stored = DTYPES[entry.dtype]
        with open(entry.file, "rb", buffering=0) as file:
            file.seek(entry.begin)
            if out.dtype == stored:
                _read_numbers(file, out, entry)
                return
            # One buffer for all tensors: one for each would leave a hole between every two of them.
            if stored not in self._buffers:
                self._buffers[stored] = torch.empty(BUFFER, dtype=stored)
            buffer = self._buffers[stored]
            for part in out.view(-1).split(BUFFER):
                _read_numbers(file, buffer[: part.numel()], entry)
                part.copy_(buffer[: part.numel()])

    def close(self) -> None:
        """Let the files go."""
        for handle in self._open.values():
            handle.__exit__(None, None, None)
        self._open.clear()
        self._buffers.clear()

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_numbers(file: RawIOBase, out: Tensor, entry: Entry) -> None:
    """The next bytes of a file as the numbers of `out`."""
    left = memoryview(out.view(-1).view(torch.uint8).numpy().data)
    while left:
        n = file.readinto(left[:MOST_AT_ONCE])
        if not n:
            raise _damaged(entry.file, "it ends inside its data")
        left = left[n:]


def open_tensors(folder: Path) -> TensorFiles:
    """The tensors in a model's folder: model.safetensors, or the shards that its index names."""
    if (folder / SINGLE).is_file():
        return TensorFiles(read_header(folder / SINGLE), folder / SINGLE)
    if (folder / INDEX).is_file():
        return TensorFiles(_read_shards(folder), folder)
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run foreign code when it is opened and "
            f"is never read. Get the model's safetensors files, or convert it without running it: {CONVERT}"
        )
    raise CheckpointError(
        f"{folder} holds no {SINGLE} and no {INDEX}: its weights are missing. Get them from its source."
    )


def read_header(file: Path) -> dict[str, Entry]:
    """What one safetensors file holds. Raises CheckpointError naming the file and what is wrong with it."""
    size = file.stat().st_size
    with open(file, "rb") as handle:
        start = handle.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise _damaged(file, f"it ends inside its header, after {size} bytes")
        if length > MAX_HEADER:
            raise _damaged(file, f"its header claims {human_bytes(length)}")
        raw = handle.read(length)
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise _damaged(file, "its header is no table")
    table.pop("__metadata__", None)
    if not all(name.isprintable() and len(name) <= MAX_NAME for name in table):
        raise _damaged(file, "its header has a tensor whose name is no name")
    entries = {name: _entry(file, name, row, size - 8 - length) for name, row in table.items()}
    _check_spans(file, table, size - 8 - length)
    return entries


def _entry(file: Path, name: str, row: Any, room: int) -> Entry:
    """One row of a header; `room` is how many bytes of data the file has."""
    try:
        dtype, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(file, f"its header describes {name} incompletely") from error
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise CheckpointError(f"{file}: {name} has the dtype {dtype!r}, which is not known. Known: {', '.join(SIZES)}.")
    whole = all(type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end))
    if not whole or begin > end or len(shape) > MAX_DIMS:
        raise _damaged(file, f"its header gives {name} an impossible shape or place")
    if end > room:
        raise _damaged(file, f"{name} should end after {end} bytes of data, but there are only {room}")
    entry = Entry(dtype, shape, file, file.stat().st_size - room + begin)
    if entry.nbytes != end - begin:
        raise _damaged(
            file, f"{name} is {dtype} {list(shape)}, {entry.nbytes} bytes, but {end - begin} are set aside for it"
        )
    return entry


def _check_spans(file: Path, table: Mapping[str, Any], room: int) -> None:
    """Tensors lie one after another, without overlaps or gaps."""
    at = 0
    for begin, end, name in sorted((*row["data_offsets"], name) for name, row in table.items()):
        if begin != at:
            raise _damaged(file, f"{name} begins at byte {begin} of the data, where {at} is expected")
        at = end
    if at != room:
        raise _damaged(file, f"its tensors end after {at} bytes of data, but there are {room}")


def _damaged(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{file} is truncated or damaged: {what}. Get it again from its source.")


def weight_map(index: Path) -> dict[str, str]:
    """Which file holds each tensor, as an index says. Raises CheckpointError where it does not."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{index} has no weight_map. Get it again from its source.")
    return places


def _read_shards(folder: Path) -> dict[str, Entry]:
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


def write_tensors(file: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors of any device and dtype to one file, in place: wrap it in `atomic_file` or `atomic_folder`."""
    owned = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    file.touch()
    mode = file.stat().st_mode & 0o777  # safetensors would make a file that only its owner may read
    save_file(owned, file, metadata={"format": "pt", **(metadata or {})})
    file.chmod(mode)


def read_tensors(file: Path, *, prefix: str = "", device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The tensors of one file whose names begin with `prefix`, in memory of their own."""
    if not file.is_file():
        raise CheckpointError(f"{file} is missing.")
    with TensorFiles(read_header(file), file) as tensors:
        return {name: tensors.read(name).to(device, copy=True) for name in tensors.entries if name.startswith(prefix)}


def write_model(folder: Path, tensors: Iterable[tuple[str, Tensor]], *, max_bytes: int) -> None:
    """Write (name, tensor) pairs as model.safetensors or, above `max_bytes`, as shards with an index.

    Only one shard is held in memory at a time.
    """
    places: dict[str, int] = {}
    n_shards = total = 0
    for shard in _shards(tensors, max_bytes):
        write_tensors(folder / f"shard-{n_shards}", shard)
        places |= dict.fromkeys(shard, n_shards)
        total += sum(tensor.nbytes for tensor in shard.values())
        n_shards += 1
    if n_shards == 1:
        (folder / "shard-0").rename(folder / SINGLE)
        return
    names = [f"model-{i + 1:05d}-of-{n_shards:05d}.safetensors" for i in range(n_shards)]
    for i, name in enumerate(names):
        (folder / f"shard-{i}").rename(folder / name)
    index = {"metadata": {"total_size": total}, "weight_map": {tensor: names[i] for tensor, i in places.items()}}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > max_bytes:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard
