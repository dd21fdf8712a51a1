"""Quantised weights, turned back into numbers as they are read. Written are always plain numbers.

A quantised tensor lies in a file as two, the codes and their scales; here it has one name, one shape and one dtype, so
that everything above reads it like any other.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.formats.quantised import Quantisation, quantisation
from onehop.formats.safetensors_header import Entry
from onehop.weights.safetensors_files import TensorFiles

# The 16 numbers of 4 bits: sign, 2 bits of exponent, 1 of mantissa (OCP Microscaling Formats 1.0, section 5.3.3).
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127  # of the scales' exponents


def from_mxfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """Microscaled 4-bit numbers, two to a byte: uint8 codes (…, R, G, 16), scales (…, R, G) -> bfloat16 (…, 32G, R).

    Each run of 32 along a row shares the scale 2^(s - 127); the low half of a byte comes first. OCP Microscaling
    Formats 1.0 (2023), section 5.2. The release of gpt-oss stores a row for each output, and uses it transposed.
    """
    values = torch.tensor([*FP4, *(-v for v in FP4)], dtype=torch.bfloat16)
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=-1)  # (256, 2): low half, high half
    power = torch.exp2((scales.to(torch.int32) - BIAS).to(torch.float32)).to(torch.bfloat16)
    numbers = pairs[codes.to(torch.int32)].flatten(-2)  # (…, R, G, 32)
    return (numbers * power.unsqueeze(-1)).flatten(-2).mT


def from_float8(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """Codes (…, R, C) float8 times the scale of their block, scales (…, R/block, C/block) rounded up -> float32.

    DeepSeek-V3, arXiv:2412.19437, section 3.3.2; the files call the scales `weight_scale_inv`.
    """
    rows, columns = codes.shape[-2:]
    scales = scales.to(torch.float32).repeat_interleave(block[0], -2)[..., :rows, :]  # (…, R, C/block)
    return codes.to(torch.float32) * scales.repeat_interleave(block[1], -1)[..., :columns]


@dataclass(frozen=True)
class Made:
    """A tensor made of the tensors `parts` of a file."""

    entry: Entry
    parts: tuple[str, ...]
    make: Callable[..., Tensor]


class DequantisedFiles(TensorFiles):
    """Tensor files some of whose tensors are `made` of others, which then have no name of their own."""

    def __init__(self, files: TensorFiles, made: Mapping[str, Made]):
        used = {part for new in made.values() for part in new.parts}
        plain = {name: entry for name, entry in files.entries.items() if name not in used}
        super().__init__(plain | {name: new.entry for name, new in made.items()}, files.where)
        self.files, self.made = files, made

    def read(self, name: str) -> Tensor:
        """One tensor; a made one in memory of its own."""
        if name not in self.made:
            return self.files.read(name)
        new = self.made[name]
        return new.make(*(self.files.read(part) for part in new.parts))

    def read_into(self, name: str, out: Tensor) -> None:
        """One tensor into `out`, as `out.copy_(read(name))`."""
        if name in self.made:
            out.copy_(self.read(name))
        else:
            self.files.read_into(name, out)


def dequantised(files: TensorFiles, raw: dict[str, Any]) -> TensorFiles:
    """The files' tensors as plain numbers, by what config.json `raw` says. Raises CheckpointError for damaged pairs."""
    how = quantisation(raw)
    if how is None:
        return files
    made = dict(_mxfp4(files) if how.method == "mxfp4" else _float8(files, how))
    return DequantisedFiles(files, made)


def _mxfp4(files: TensorFiles) -> list[tuple[str, Made]]:
    found = []
    for codes, entry in files.entries.items():
        name = codes.removesuffix("_blocks")
        if name == codes or f"{name}_scales" not in files.entries:
            continue
        scales = files.entries[f"{name}_scales"]
        fits = len(entry.shape) >= 3 and entry.shape[-1] == 16 and scales.shape == entry.shape[:-1]
        if not fits or {entry.dtype, scales.dtype} != {"U8"}:
            raise _unfit(files, codes, entry, scales, "(…, rows, blocks, 16) of U8 and a scale for each block")
        *outer, rows, blocks = scales.shape
        shape = (*outer, 32 * blocks, rows)
        found.append((name, Made(Entry("BF16", shape, entry.file), (codes, f"{name}_scales"), from_mxfp4)))
    return found


def _float8(files: TensorFiles, how: Quantisation) -> list[tuple[str, Made]]:
    found = []
    for name, entry in files.entries.items():
        scales = files.entries.get(f"{name}_scale_inv")
        if scales is None:
            continue
        grid = tuple(math.ceil(n / b) for n, b in zip(entry.shape[-2:], how.block, strict=False))
        fits = len(entry.shape) >= 2 and scales.shape == (*entry.shape[:-2], *grid)
        if not fits or entry.dtype != "F8_E4M3" or scales.dtype not in ("F32", "BF16"):
            raise _unfit(files, name, entry, scales, f"F8_E4M3 and a scale for each block of {list(how.block)}")

        def make(codes: Tensor, scales: Tensor) -> Tensor:
            return from_float8(codes, scales, how.block)

        found.append((name, Made(Entry("BF16", entry.shape, entry.file), (name, f"{name}_scale_inv"), make)))
    return found


def _unfit(files: TensorFiles, name: str, codes: Entry, scales: Entry, needed: str) -> CheckpointError:
    return CheckpointError(
        f"{files.where}: {name} is {codes.dtype} {list(codes.shape)} with scales {scales.dtype} {list(scales.shape)}; "
        f"needed are {needed}. Get the checkpoint again from its source."
    )
