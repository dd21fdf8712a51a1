"""One product per expert over the tokens that visit it: no token is dropped and none is padded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Groups:
    """Visits sorted by expert. A visit is one (token, choice) pair; N tokens with k choices make M = N · k of them."""

    order: Tensor  # (M,) int64, numbers of the visits, those of expert 0 first
    ends: Tensor  # (E,) int32, where the run of each expert ends

    @classmethod
    def of(cls, indices: Tensor, n_experts: int) -> "Groups":
        """Sort the visits of experts `indices` (N, k)."""
        flat = indices.flatten()  # (M,)
        counts = torch.zeros(n_experts, dtype=torch.int32, device=flat.device)
        counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        return cls(flat.argsort(stable=True), counts.cumsum(0, dtype=torch.int32))

    def back(self) -> Tensor:
        """(M,) int64: the place of each visit in the sorted order."""
        places = torch.arange(self.order.numel(), device=self.order.device)
        return torch.empty_like(self.order).scatter_(0, self.order, places)


def _outside_graphs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep a function out of compiled graphs: torch.compiler.disable, which would load the compiler at import (2 s)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def grouped_linear(x: Tensor, w: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows of expert e times w[e]ᵀ, plus bias[e]: x (M, in), w (E, out, in), ends (E,), bias (E, out) -> (M, out)."""
    x, w, bias = _as_autocast(x, w, bias)
    if not _fits_grouped_mm(x, w):
        return plain_grouped_linear(x, w, ends, bias)
    y = F.grouped_mm(x, w.transpose(1, 2), offs=ends)  # (M, out)
    if y.requires_grad:
        y = _DenseGradient.apply(y)
    return y if bias is None else y + _per_row(bias, ends, x.size(0))


@_outside_graphs
def plain_grouped_linear(x: Tensor, w: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """The definition: a loop over the experts that are visited."""
    experts, biases = w.unbind(), [None] * w.size(0) if bias is None else bias.unbind()
    out, start = [], 0
    for e, end in enumerate(ends.tolist()):
        if end > start:
            out.append(F.linear(x[start:end], experts[e], biases[e]))
        start = end
    return torch.cat(out) if out else F.linear(x, experts[0], biases[0])  # (0, out), with a gradient


class _DenseGradient(torch.autograd.Function):
    """The identity, whose gradient is laid out densely: F.grouped_mm refuses that of a plain sum, one number."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.contiguous()


def _as_autocast(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast as autocast casts a linear map's operands; it does not know F.grouped_mm."""
    device = x.device.type
    if x.dtype == torch.float64 or x.is_meta or not torch.is_autocast_enabled(device):
        return x, w, bias
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype)


def _fits_grouped_mm(x: Tensor, w: Tensor) -> bool:
    """F.grouped_mm takes no float64, rows a multiple of 16 bytes apart, and in a compiled graph bf16 only."""
    if torch.compiler.is_compiling() and x.dtype != torch.bfloat16:
        return False
    return (
        x.dtype == w.dtype
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and all(width * x.element_size() % 16 == 0 for width in w.shape[1:])
    )


def _per_row(bias: Tensor, ends: Tensor, rows: int) -> Tensor:
    """Turn bias (E, out) into (rows, out), each row that of its expert."""
    expert = torch.searchsorted(ends, torch.arange(rows, dtype=ends.dtype, device=ends.device), right=True)
    return bias[expert]
