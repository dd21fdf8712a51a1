"""Absolute positions: a vector for each position, added once to the token embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onehop.parts.constant import fresh_normal


class LearnedPositions(nn.Module):
    """A learned vector for each of `max_len` positions: at (B, T) -> (B, T, C). `weight` is (max_len, C).

    Gehring et al. 2017, arXiv:1705.03122, section 3.1. An empty slot (-1) gets row 0; nobody looks at it.
    """

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh vectors, as small as a fresh token embedding."""
        fresh_normal(self.weight)

    def forward(self, at: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Positions (B, T) below max_len -> (B, T, C), in `dtype` (none: the weight's)."""
        return F.embedding(at.clamp(min=0), self.weight).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.size(0)}, {self.weight.size(1)}"


class SinusoidalPositions(nn.Module):
    """sin and cos of the position at wavelengths from 2π to 10000·2π, interleaved: at (B, T) -> (B, T, C).

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5: dim 2j is sin(at / 10000^(2j/C)), dim 2j + 1 its cos.
    (Some later code puts all sines first.) Any position is allowed. Taken in float64 (float32 on mps), then rounded.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, at: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Positions (B, T) -> (B, T, C), in `dtype` (none: float32)."""
        exact = torch.float32 if at.device.type == "mps" else torch.float64
        j = torch.arange(self.d_model // 2, dtype=exact, device=at.device)
        angle = at.unsqueeze(-1).to(exact) * 10000.0 ** (-2 * j / self.d_model)  # (B, T, C/2)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2).to(dtype or torch.float32)  # (B, T, C)

    def extra_repr(self) -> str:
        return f"{self.d_model}"
