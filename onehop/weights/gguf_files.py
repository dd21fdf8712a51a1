"""Tensors in a GGUF file: mapped and dequantised one at a time, and written one after another.

Quantised types are computed by the package `gguf`; F32, F16 and BF16 need no package to be read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onehop.base.errors import CheckpointError, ConfigError, MissingExtra
from onehop.formats.gguf.header import Header, Place
from onehop.formats.safetensors_header import Entry

PLAIN: Mapping[str, tuple[Any, torch.dtype]] = {
    "F32": (np.float32, torch.float32),
    "F16": (np.float16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),  # numpy has no bfloat16: the bits are looked at anew
}
WRITTEN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}  # general.file_type: what most of a file's tensors are
PIECE = 1 << 18  # bytes that are dequantised at once
BLOCK = 32  # numbers that share a scale in Q8_0
# Always in float32, as llama.cpp's own converter has it: its kernels take no other.
EXACT = ("ffn_gate_inp.weight", "position_embd.weight", "token_embd_norm.weight")


class GGUFTensors:
    """The tensors of a GGUF file, or of all parts of one, by name, as `TensorFiles` has them.

    Entries have the types of what `read` gives.
    """

    def __init__(self, header: Header):
        self.header, self.where = header, header.file
        self.entries: Mapping[str, Entry] = {name: _entry(place) for name, place in header.tensors.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(place.nbytes for place in self.header.tensors.values())

    def dtype(self) -> torch.dtype:
        """The dtype that holds most of the file's numbers without rounding: float32 for quantised ones."""
        found: torch.dtype = getattr(torch, self.header.loads)
        return found

    def read(self, name: str) -> Tensor:
        """One tensor: a view of the mapped file, or in memory of its own where it was dequantised."""
        place = self.header.tensors[name]
        mapped = np.memmap(place.file, dtype=np.uint8, mode="c", offset=place.begin, shape=(place.nbytes,))
        if place.type in PLAIN:
            kind, dtype = PLAIN[place.type]
            return torch.from_numpy(mapped.view(kind).reshape(place.shape)).view(dtype)
        return dequantised(mapped, place)

    def read_into(self, name: str, out: Tensor) -> None:
        """One tensor into `out`, as `out.copy_(read(name))`."""
        out.copy_(self.read(name))

    def __enter__(self) -> "GGUFTensors":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays open: every tensor maps its own part of the file."""


def dequantised(data: "np.ndarray[Any, Any]", place: Place) -> Tensor:
    """The float32 numbers of a quantised tensor, computed piece by piece so that little more memory is in use."""
    gguf = package("reading quantised weights")
    kind = gguf.GGMLQuantizationType[place.type]
    _, width = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty(math.prod(place.shape), dtype=np.float32)
    step, done = PIECE // width * width, 0
    for begin in range(0, place.nbytes, step):
        found = gguf.quants.dequantize(data[begin : begin + step], kind)
        out[done : done + found.size] = found
        done += found.size
    return torch.from_numpy(out.reshape(place.shape))


def _entry(place: Place) -> Entry:
    return Entry(place.type if place.type in PLAIN else "F32", place.shape, place.file)


def package(needed_for: str) -> ModuleType:
    """The package `gguf`. Raises MissingExtra naming the installation."""
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra("gguf", extra="convert", needed_for=needed_for) from error
    return gguf


def type_of(dtype: str) -> str:
    """The type of a file for a dtype by name. Raises ConfigError for others."""
    if dtype not in WRITTEN:
        raise ConfigError(f"dtype={dtype!r} cannot be written as GGUF. Use {', '.join(WRITTEN)}.")
    return WRITTEN[dtype]


def type_for(name: str, shape: Sequence[int], wanted: str) -> str:
    """The type of one tensor in a file of type `wanted`: vectors and a few others are exact, odd rows are not Q8_0."""
    if len(shape) < 2 or name.endswith(EXACT):
        return "F32"
    return "F16" if wanted == "Q8_0" and shape[-1] % BLOCK else wanted


def write_gguf(
    file: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    *,
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[tuple[str, Tensor]],
    wanted: str,
) -> None:
    """Write a file in place, one tensor at a time: wrap it in `atomic_file`.

    metadata: whole keys and plain values; numbers become uint32 and float32. `tensors` come in the order of `shapes`.
    """
    gguf = package("writing GGUF files")
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in metadata.items():
        _add(writer, gguf, key, value)
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType[type_for(name, shape, wanted)]
        block, width = gguf.GGML_QUANT_SIZES[kind]
        nbytes = math.prod(shape) // block * width
        writer.add_tensor_info(name, tuple(shape), np.dtype(np.float32), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in tensors:
        writer.write_tensor_data(_array(gguf, tensor, type_for(name, shapes[name], wanted), name))
    writer.close()


def _array(gguf: ModuleType, tensor: Tensor, kind: str, name: str) -> "np.ndarray[Any, Any]":
    """A tensor's bytes in one type."""
    tensor = tensor.detach().cpu().contiguous()
    if kind == "BF16":
        return tensor.bfloat16().view(torch.int16).numpy().view(np.uint16)
    if kind == "F16":
        half = tensor.half()
        if half.isinf().any() and not tensor.isinf().any():
            raise CheckpointError(f"{name} reaches {float(tensor.abs().max()):g}, which F16 cannot hold. Use bfloat16.")
        return half.numpy()
    exact = tensor.float().numpy()
    return exact if kind == "F32" else gguf.quants.quantize(exact, gguf.GGMLQuantizationType[kind])


def _add(writer: Any, gguf: ModuleType, key: str, value: Any) -> None:
    """One key, of the type that its Python value has; lists have the type of their first value."""
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
    if not isinstance(value, list):
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    elif value:
        inner = "INT32" if isinstance(value[0], int) and not isinstance(value[0], bool) else kinds[type(value[0])]
        writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType[inner])
