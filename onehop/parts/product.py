"""x · Wᵀ + b by oneDNN, PyTorch's other library for products on a CPU; `F.linear` is its plain twin."""

import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.parts.by_hand import ORDINARY

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x, W, b -> x · Wᵀ + b


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear by oneDNN for float32 on a CPU, (…, d_in) · (d_out, d_in) -> (…, d_out); anything else by `F.linear`."""
    if torch.compiler.is_compiling():
        if _fits(x, weight) and max(weight.shape) > narrow():
            graphed: Tensor = in_graphs(x, weight, bias)
            return graphed
        return F.linear(x, weight, bias)
    ordinary = type(x) in ORDINARY and type(weight) in ORDINARY
    if not ordinary or not _fits(x, weight) or torch._C._are_functorch_transforms_active():
        return F.linear(x, weight, bias)
    y: Tensor = _OneDNN.apply(x, weight, bias)
    return y


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes them, and their gradients: rows there must be, of numbers that there are."""
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and x.dtype == weight.dtype == torch.float32 and x.dim() > 1 and x.numel() > 0 and weight.numel() > 0


class _OneDNN(torch.autograd.Function):
    """x · Wᵀ + b and its gradients, each one product of oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        with torch.autocast("cpu", enabled=False):
            return _gradients(ctx, g, onednn)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _gradients(ctx: Any, g: Tensor, product: Product) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Those of x, W and b, given that of y (…, d_out)."""
    x, weight = ctx.saved_tensors
    rows = g.flatten(0, -2)  # (N, d_out)
    dx = product(g, weight.t(), None) if ctx.needs_input_grad[0] else None
    dw = _of_weight(rows, x.flatten(0, -2), product) if ctx.needs_input_grad[1] else None
    return dx, dw, rows.sum(0) if ctx.biased else None


def _of_weight(g: Tensor, x: Tensor, product: Product) -> Tensor:
    """The gradient of W, gᵀ · x, given that of y, g (N, d_out), and x (N, d_in) -> (d_out, d_in).

    oneDNN has its left side lie row by row, so one of the two is copied, number by number; where that is x, the result
    lies the other way round and is copied too when it is added to a parameter's gradient. Beside a narrow product these
    copies cost more than MKL takes longer.
    """
    (n, d_out), d_in = g.shape, x.size(1)
    if max(d_out, d_in) <= narrow():
        return g.t() @ x
    if n * d_out <= d_in * (n + d_out):
        return product(g.t(), x.t(), None)
    return product(x.t(), g.t(), None).t()


# The same for the compiler, which cannot take that operation apart: one that it calls as it is. (Defined so, and not by
# `custom_op`, because a call then costs no more than the operation itself.)
torch.library.define("onehop::linear", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
torch.library.impl("onehop::linear", "cpu", _product)
in_graphs = torch.ops.onehop.linear.default


@torch.library.register_fake("onehop::linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.size(0))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


torch.library.register_autograd("onehop::linear", lambda ctx, g: _gradients(ctx, g, in_graphs), setup_context=_keep)


def narrow() -> int:
    """The width up to which MKL is the quicker one for a weight's gradient, and in a graph for all of a product.

    Measured on Zen 4, which takes AVX-512 in two halves, so that MKL, without it, has three quarters of oneDNN's speed.
    (Zen 3, of the same number, has no AVX-512 and takes MKL for everything.)
    """
    return 512 if amd_family() == ZEN_4 else 0


# For the compiler a number: torch.compiler.assume_constant_result, which would load the compiler at import (2 s).
narrow._dynamo_marked_constant = True  # type: ignore[attr-defined]

ZEN_4 = 25
CPUINFO = Path("/proc/cpuinfo")


def made_by_amd() -> bool:
    """Whether the processor is one for which MKL takes a general path, without AVX-512."""
    return amd_family() is not None


@cache
def amd_family() -> int | None:
    """The number that AMD gives a processor's design: 25 is Zen 3 and Zen 4, 26 Zen 5. None: another maker's."""
    text = platform.processor() + "\n" + (CPUINFO.read_text() if CPUINFO.is_file() else "")
    if "AMD" not in text:
        return None
    number = re.search(r"(?:cpu family\s*:|Family)\s*(\d+)", text)
    return int(number[1]) if number else 0
