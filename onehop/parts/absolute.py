"""Absolute positions: a vector for each position, added once to the token embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onehop.parts.constant import fresh_normal


class LearnedPositions(nn.Module):
    """A learned vector for each of `max_len` positions: at (B, T) -> (B, T, C). `weight` is (offset + max_len, C).

    Gehring et al. 2017, arXiv:1705.03122, section 3.1. Position p has row offset + p; rows below the offset are kept
    only because files hold them (OPT). An empty slot (-1) gets the row of position 0; nobody looks at it.
    """

    def __init__(self, max_len: int, d_model: int, *, offset: int = 0):
        super().__init__()
        self.max_len, self.offset = max_len, offset
        self.weight = nn.Parameter(torch.empty(offset + max_len, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh vectors, as small as a fresh token embedding."""
        fresh_normal(self.weight)

    def forward(self, at: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Positions (B, T) below max_len -> (B, T, C), in `dtype` (none: the weight's)."""
        return F.embedding(at.clamp(min=0) + self.offset, self.weight).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.size(0)}, {self.weight.size(1)}"


class SinusoidalPositions(nn.Module):
    """sin and cos of the position at wavelengths from 2π to 10000·2π, interleaved: at (B, T) -> (B, T, C).

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5: dim 2j is sin(at / 10000^(2j/C)), dim 2j + 1 its cos.
    waves=halves (Junczys-Dowmunt et al. 2018, Marian, arXiv:1804.00344, in its release): dim j is sin(at /
    10000^(2j/C)), dim C/2 + j its cos. waves=fairseq (Ott et al. 2019, arXiv:1904.01038, in its release): dim j is
    sin(at / 10000^(j/(C/2 - 1))), dim C/2 + j its cos. `offset` is added to every position. Any position is allowed.
    Taken in float64 (float32 on mps), then rounded.
    """

    def __init__(self, d_model: int, *, waves: str = "interleaved", offset: int = 0):
        super().__init__()
        self.d_model, self.offset, self.halves = d_model, offset, waves != "interleaved"
        self.steps = d_model // 2 - (waves == "fairseq")  # from the first wavelength to 10000 times it

    def forward(self, at: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Positions (B, T) -> (B, T, C), in `dtype` (none: float32)."""
        exact = torch.float32 if at.device.type == "mps" else torch.float64
        half = self.d_model // 2
        j = torch.arange(half, dtype=exact, device=at.device)
        at = (at + self.offset).unsqueeze(-1).to(exact)  # (B, T, 1)
        angle = at * 10000.0 ** (-j / self.steps)  # (B, T, C/2)
        pairs = torch.stack((angle.sin(), angle.cos()), dim=-2 if self.halves else -1)
        return pairs.flatten(-2).to(dtype or torch.float32)  # (B, T, C)

    def extra_repr(self) -> str:
        return f"{self.d_model}"
