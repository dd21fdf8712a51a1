"""Ways to stretch RoPE over longer texts: each turns the plain frequencies of the pairs into others.

A row of `STRETCHES` is two functions of the config. `inv_freq(cfg, plain, theta=…, length=…)`: `plain` (P,) float64 is
theta^(-2j/d) radians per token for the pairs j = 0 … P-1 of a rotary width d = 2P. `attention_factor(cfg)` multiplies
cos and sin. With `by_length` the frequencies depend on the length of the text: `length` (B,) in tokens -> (B, P).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onehop.base.choices import Choices
from onehop.config.position import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    YarnScaling,
)


def plain_inv_freq(theta: float, width: int) -> Tensor:
    """Radians per token theta^(-2j/width) of each pair j: (width/2,) float64. arXiv:2104.09864, equation 15."""
    j = torch.arange(width // 2, dtype=torch.float64, device="cpu")
    return theta ** (-2 * j / width)


def linear(cfg: LinearScaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """Every frequency divided by the factor. Chen et al. 2023, arXiv:2306.15595, equation 4."""
    return plain / cfg.factor


def ntk(cfg: NTKScaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """The base becomes theta · factor^(d/(d-2)): the first pair keeps its frequency, the last is divided by the factor.

    Peng et al. 2023, arXiv:2309.00071, section 3.1, written as plain_j · factor^(-2j/(d-2)).
    """
    return plain * cfg.factor ** -_place(plain)


def dynamic(cfg: DynamicScaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """NTK-aware with the factor s·l/L - (s - 1) at length l beyond L, none up to L. arXiv:2309.00071, section 3.3.

    The paper's s = max(1, l/L) is the case s = 1 of this form, which is the one that released models use.
    """
    if length is None:
        return plain
    over = length.to(plain.dtype).clamp(min=cfg.original_max_len) / cfg.original_max_len
    growth = cfg.factor * over - (cfg.factor - 1)  # (B,)
    return plain * growth.unsqueeze(-1) ** -_place(plain)  # (B, P)


def yarn(cfg: YarnScaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """Slow pairs divided by the factor, fast ones kept, a linear ramp over the pairs between.

    Peng et al. 2023, arXiv:2309.00071, equations 18-23, in the release's form: the ramp is linear in the pair's number.
    """
    width = 2 * plain.numel()

    def pair_that_turns(times: float) -> float:
        """The number of the pair that turns so often within the original length."""
        return width * math.log(cfg.original_max_len / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(cfg.beta_fast), pair_that_turns(cfg.beta_slow)
    if cfg.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    j = torch.arange(plain.numel(), dtype=plain.dtype, device=plain.device)
    slow = ((j - low) / (high - low if high != low else 0.001)).clamp(0, 1)  # 0: keep, 1: interpolate
    return plain / cfg.factor * slow + plain * (1 - slow)


def yarn_attention_factor(cfg: YarnScaling) -> float:
    """The paper's sqrt(1/t) = 0.1 ln(factor) + 1 (equation 22), or a quotient of two such with DeepSeek's mscales.

    An mscale that is left out counts as 1 in the numerator and as 0 in the denominator, as in DeepSeek-V2's release.
    """
    if cfg.attention_factor is not None:
        return cfg.attention_factor
    if cfg.factor <= 1:
        return 1.0
    above = 1.0 if cfg.mscale is None else cfg.mscale
    below = 0.0 if cfg.mscale_all_dim is None else cfg.mscale_all_dim
    return (0.1 * above * math.log(cfg.factor) + 1) / (0.1 * below * math.log(cfg.factor) + 1)


def llama3(cfg: Llama3Scaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """Pairs with long wavelengths divided by the factor, short ones kept, those between blended in frequency.

    Meta 2024, the Llama 3.1 release (`apply_scaling` in its reference model).
    """
    turns = cfg.original_max_len * plain / (2 * math.pi)  # within the original length
    keep = ((turns - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)).clamp(0, 1)
    return plain / cfg.factor * (1 - keep) + plain * keep


def longrope(cfg: LongRopeScaling, plain: Tensor, *, theta: float, length: Tensor | None) -> Tensor:
    """Each pair divided by a factor of its own, from one list up to the original length and another beyond it.

    Ding et al. 2024, arXiv:2402.13753, section 3.
    """
    short = plain / torch.tensor(cfg.short_factor, dtype=plain.dtype, device=plain.device)
    if length is None:
        return short
    long = plain / torch.tensor(cfg.long_factor, dtype=plain.dtype, device=plain.device)
    return torch.where(length.unsqueeze(-1) > cfg.original_max_len, long, short)  # (B, P)


def longrope_attention_factor(cfg: LongRopeScaling) -> float:
    """The root sqrt(1 + ln(factor) / ln(original length)), as in the release of arXiv:2402.13753."""
    if cfg.attention_factor is not None:
        return cfg.attention_factor
    if cfg.factor is None or cfg.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(cfg.factor) / math.log(cfg.original_max_len))


def _place(plain: Tensor) -> Tensor:
    """2j/(d-2): 0 for the first pair, 1 for the last, (P,)."""
    return torch.arange(plain.numel(), dtype=plain.dtype, device=plain.device) / (plain.numel() - 1)


def _one(cfg: Any) -> float:
    return 1.0


@dataclass(frozen=True)
class Stretch:
    """One way to stretch: its frequencies, its attention factor, and whether they depend on the text's length."""

    inv_freq: Callable[..., Tensor]
    attention_factor: Callable[[Any], float] = _one
    by_length: bool = False


STRETCHES: Choices[Stretch] = Choices(
    "rope scaling",
    {
        "linear": Stretch(linear),
        "ntk": Stretch(ntk),
        "dynamic": Stretch(dynamic, by_length=True),
        "yarn": Stretch(yarn, yarn_attention_factor),
        "llama3": Stretch(llama3),
        "longrope": Stretch(longrope, longrope_attention_factor, by_length=True),
    },
)
