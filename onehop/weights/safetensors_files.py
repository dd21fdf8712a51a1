"""Tensors in safetensors files: one file, or shards with an index.

Headers are checked before any data is read (`formats/safetensors_header.py`). Data is memory-mapped and read tensor by
tensor.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.formats.safetensors_header import INDEX, NAMES, SINGLE, Entry, damaged, dtype_of, read_header, read_shards

BUFFER = 1 << 18  # numbers that are converted at a time
MOST_AT_ONCE = 1 << 28  # bytes of one system call; Linux reads at most 2 GB
DTYPES: Mapping[str, torch.dtype] = {stored: getattr(torch, name) for stored, name in NAMES.items()}
CONVERT = (
    'python -c "import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in '
    "torch.load('pytorch_model.bin', weights_only=True).items()}, 'model.safetensors')\""
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


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
        found: torch.dtype = getattr(torch, dtype_of(self.entries))
        return found

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
            raise damaged(entry.file, "it ends inside its data")
        left = left[n:]


def open_tensors(folder: Path) -> TensorFiles:
    """The tensors in a model's folder: model.safetensors, or the shards that its index names."""
    if (folder / SINGLE).is_file():
        return TensorFiles(read_header(folder / SINGLE), folder / SINGLE)
    if (folder / INDEX).is_file():
        return TensorFiles(read_shards(folder), folder)
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run foreign code when it is opened and "
            f"is never read. Get the model's safetensors files, or convert it without running it: {CONVERT}"
        )
    raise CheckpointError(
        f"{folder} holds no {SINGLE} and no {INDEX}: its weights are missing. Get them from its source."
    )


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
