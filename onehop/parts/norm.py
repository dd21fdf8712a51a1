"""Norms: give each token's vector a standard size.

Statistics, offset + weight and the product with it are taken in float32 (float64 for float64 input) and rounded once,
to the input's dtype. Some published code rounds before it multiplies by the weight; the two differ by one rounding.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onehop.base.choices import Choices
from onehop.config.norm import LayerNormConfig, NormConfig, RMSNormConfig
from onehop.parts.by_hand import by_hand


class RMSNorm(nn.Module):
    """y = x / rms(x) · (offset + weight) over the last axis: (…, C) -> (…, C).

    Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """

    def __init__(self, width: int, cfg: RMSNormConfig):
        super().__init__()
        self.width, self.eps, self.offset = width, cfg.eps, cfg.offset
        self.narrow = cfg.statistics == "float32"
        self.weight = nn.Parameter(torch.empty(width)) if cfg.affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the fresh norm multiply by 1."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        """(…, C) -> (…, C) of the same dtype."""
        weight = self.weight
        if self.narrow and x.dtype == torch.float64:
            return plain_rms_norm(x, weight, offset=self.offset, eps=self.eps, statistics=torch.float32)
        if weight is None or (self.offset == 0 and weight.dtype == x.dtype):
            return _rms_norm(x, weight, self.eps)
        h = x.to(wide(x.dtype))
        return _rms_norm(h, weight.to(h.dtype) + self.offset, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, offset={self.offset}"


class LayerNorm(nn.Module):
    """y = (x - mean) / std · (offset + weight) + bias over the last axis: (…, C) -> (…, C).

    Ba et al. 2016, arXiv:1607.06450, equation 4.
    """

    def __init__(self, width: int, cfg: LayerNormConfig):
        super().__init__()
        self.width, self.eps, self.offset = width, cfg.eps, cfg.offset
        self.weight = nn.Parameter(torch.empty(width)) if cfg.affine else None
        self.bias = nn.Parameter(torch.empty(width)) if cfg.affine and cfg.bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the fresh norm multiply by 1 and add 0."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1 - self.offset)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, C) -> (…, C) of the same dtype."""
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if weight is None or (self.offset == 0 and weight.dtype == x.dtype):
            return F.layer_norm(x, (self.width,), weight, bias, self.eps)
        h = x.to(wide(x.dtype))
        bias = None if bias is None else bias.to(h.dtype)
        return F.layer_norm(h, (self.width,), weight.to(h.dtype) + self.offset, bias, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, offset={self.offset}"


class NormOfHeads(nn.Module):
    """A norm over each head's vector, with weights of its own for each head: (…, H, D) -> (…, H, D)."""

    def __init__(self, n_heads: int, width: int, cfg: RMSNormConfig | LayerNormConfig):
        super().__init__()
        self.offset = cfg.offset
        self.bare = NORMS.get(cfg.kind)(width, cfg.model_copy(update={"affine": False}))
        self.weight = nn.Parameter(torch.empty(n_heads, width))
        has_bias = isinstance(cfg, LayerNormConfig) and cfg.bias
        self.bias = nn.Parameter(torch.empty(n_heads, width)) if has_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the fresh norm multiply by 1 and add 0."""
        nn.init.constant_(self.weight, 1 - self.offset)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, H, D) -> (…, H, D) of the same dtype."""
        h = x.to(wide(x.dtype))
        y = self.bare(h) * (self.weight.to(h.dtype) + self.offset)
        return (y if self.bias is None else y + self.bias.to(h.dtype)).to(x.dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which statistics are taken: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """PyTorch's RMSNorm, or on a CPU, where PyTorch makes it of many operations, one of our own.

    They are for training, in which its gradient takes three times as long, and for a single token that is decoded.
    """
    if x.is_cpu:
        if torch.is_grad_enabled():
            if weight is not None and x.dtype in (torch.float32, torch.float64) and by_hand(x, weight):
                y: Tensor = _Trained.apply(x, weight, eps)
                return y
        elif x.numel() == x.size(-1) and _is_at_hand(x):
            return _one_row(x, weight, eps)
    return F.rms_norm(x, (x.size(-1),), weight, eps)


def _one_row(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm of one vector x (…, C), all but one of whose sizes are 1: its length is a number, not a tensor."""
    h = x if x.dtype is torch.float32 else x.float()
    length = float(torch.linalg.vector_norm(h))
    square = length * length / h.numel() + eps
    r = square**-0.5 if square else math.inf
    r = r if r <= _LARGEST else math.inf  # as it is in float32
    y = h * r if weight is None else torch.addcmul(_ZERO, h, weight, value=r)
    return y if h is x else y.to(x.dtype)


_ZERO = torch.zeros(1, dtype=torch.float32, device="cpu")  # whatever the defaults are when this is imported
_LARGEST = torch.finfo(torch.float32).max


def _is_at_hand(x: Tensor) -> bool:
    """Whether the numbers of x can be read now, and are no wider than float32."""
    if torch.compiler.is_compiling():  # first: the compiler knows nothing of inference mode
        return False
    return type(x) is Tensor and x.dtype != torch.float64 and torch.is_inference_mode_enabled()


class _Trained(torch.autograd.Function):
    """RMSNorm whose gradient takes few passes over memory. With r = 1 / rms(x) and u = g ⊙ x:

    dx = r · g ⊙ w - r³/C · (u·w) x and dw = Σ r · u, by the product rule on y = r · x ⊙ w.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = _inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, r)
        ctx.eps = eps
        return (x * r).mul_(weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative has to see that r depends on x
            r = _inverse_rms(x, ctx.eps)
        with torch.autocast("cpu", enabled=False):
            u = (g * x).reshape(-1, x.size(-1))  # (N, C)
            along = (u @ weight).view_as(r) * r**3 / x.size(-1)  # (…, 1)
            return (g * weight).mul_(r).addcmul_(x, along, value=-1), r.reshape(-1) @ u, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.size(-1) + eps)


def plain_rms_norm(
    x: Tensor, weight: Tensor | None, *, offset: int, eps: float, statistics: torch.dtype | None = None
) -> Tensor:
    """The definition of RMSNorm; `statistics` is the dtype of the mean square (None: `wide`)."""
    h = x.to(wide(x.dtype))
    y = h * torch.rsqrt(h.to(statistics or h.dtype).square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * (offset + weight.to(y.dtype))).to(x.dtype)


def plain_layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, offset: int, eps: float) -> Tensor:
    """The definition of LayerNorm."""
    h = x.to(wide(x.dtype))
    centred = h - h.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * (offset + weight.to(y.dtype))
    return (y if bias is None else y + bias.to(y.dtype)).to(x.dtype)


def no_norm(width: int, cfg: NormConfig) -> nn.Module:
    """Pass the input on."""
    return nn.Identity()


NORMS: Choices[Callable[..., nn.Module]] = Choices("norm", {"rms": RMSNorm, "layer": LayerNorm, "none": no_norm})
