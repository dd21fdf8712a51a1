"""Dropout as a pure function of where it falls, so that recomputation, tiles and resumed runs repeat it.

Srivastava et al. 2014. The random bits are a counter-based hash (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"), here the 32-bit finaliser of MurmurHash3, in integer tensor arithmetic that is the same on every device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MASK = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class DropKey:
    """A place in the tree of random draws: seed, step, micro-batch, layer, site. `value` is a 0-d int64 tensor."""

    value: Tensor

    @classmethod
    def of(cls, *parts: int, device: torch.device | str = "cpu") -> "DropKey":
        """The key of (seed, step, micro-batch …)."""
        key = cls(torch.zeros((), dtype=torch.int64, device=device))
        for part in parts:
            key = key.at(part)
        return key

    def at(self, part: int) -> "DropKey":
        """The key of one branch below this one."""
        return DropKey(_mix(self.value * 0x9E3779B1 + (part & MASK) + 0x7F4A7C15))


def keep(key: DropKey, rate: float, *index: Tensor) -> Tensor:
    """Which elements stay, with probability 1 - rate each: bool of the broadcast shape of `index` (int64 tensors)."""
    bits = key.value
    for i in index:
        bits = _mix(bits * 0x9E3779B1 + i)
    return bits >= int(rate * (MASK + 1))


def dropout(x: Tensor, rate: float, key: DropKey | None) -> Tensor:
    """Set elements of x to zero at `rate` and scale the rest by 1/(1 - rate); x itself without a key."""
    if key is None or rate == 0.0:
        return x
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    return x * keep(key, rate, index).to(x.dtype) / (1.0 - rate)


def _mix(h: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser on int64 tensors that hold 32 bits."""
    h = h & MASK
    h = (h ^ (h >> 16)) * 0x85EBCA6B & MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & MASK
    return h ^ (h >> 16)
