"""x · Wᵀ + b by oneDNN, PyTorch's other library for products on a CPU; `F.linear` is its plain twin."""

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x, W, b -> x · Wᵀ + b


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear by oneDNN for float32 on a CPU, (…, d_in) · (d_out, d_in) -> (…, d_out); anything else by `F.linear`."""
    if torch.compiler.is_compiling():
        if _fits(x, weight):
            graphed: Tensor = in_graphs(x, weight, bias)
            return graphed
        return F.linear(x, weight, bias)
    plain = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    if not plain or not _fits(x, weight) or torch._C._are_functorch_transforms_active():
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
    dw = product(rows.t(), x.flatten(0, -2).t(), None) if ctx.needs_input_grad[1] else None
    return dx, dw, rows.sum(0) if ctx.biased else None


# The same for the compiler, which cannot take that operation apart: one that it calls as it is.
in_graphs = torch.library.custom_op("onehop::linear", _product, mutates_args=(), device_types="cpu")


@in_graphs.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.size(0))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


in_graphs.register_autograd(lambda ctx, g: _gradients(ctx, g, in_graphs), setup_context=_keep)


@cache
def made_by_amd() -> bool:
    """Whether the processor is one for which MKL takes a general path, at half of oneDNN's speed."""
    if "AMD" in platform.processor() or "AuthenticAMD" in platform.processor():
        return True
    about = Path("/proc/cpuinfo")
    return about.is_file() and "AuthenticAMD" in about.read_text()
