"""Dropout as a pure function of where it falls, so that recomputation, tiles and resumed runs repeat it.

Srivastava et al. 2014. The random bits are a counter-based hash (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"), here the 32-bit finaliser of MurmurHash3, in integer tensor arithmetic that is the same on every device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def _signed(x: int) -> int:
    """The low 32 bits of x as int32 holds them."""
    return ((x + 2**31) & 0xFFFFFFFF) - 2**31


GOLDEN, FIRST, SECOND = (_signed(x) for x in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35))


@dataclass(frozen=True, eq=False)
class DropKey:
    """A place in the tree of random draws: seed, step, micro-batch, layer, site. `value` is a 0-d int32 tensor."""

    value: Tensor

    @classmethod
    def of(cls, *parts: int, device: torch.device | str = "cpu") -> "DropKey":
        """The key of (seed, step, micro-batch …)."""
        key = cls(torch.zeros((), dtype=torch.int32, device=device))
        for part in parts:
            key = key.at(part)
        return key

    def at(self, part: int) -> "DropKey":
        """The key of one branch below this one."""
        return DropKey(_mix(self.value * GOLDEN + _signed(part + 0x7F4A7C15)))


def keep(key: DropKey, rate: float, *index: Tensor) -> Tensor:
    """Which elements stay, with probability 1 - rate each: bool of the broadcast shape of `index` (int64 tensors)."""
    bits = key.value
    for i in index:
        bits = _mix(bits * GOLDEN + i.to(torch.int32))
    return bits >= int(rate * 2**32) - 2**31


def dropout(x: Tensor, rate: float, key: DropKey | None) -> Tensor:
    """Set elements of x to zero at `rate` and scale the rest by 1/(1 - rate); x itself without a key."""
    if key is None or rate == 0.0:
        return x
    index = torch.arange(x.numel(), device=x.device).view(x.shape)
    return x * keep(key, rate, index).to(x.dtype) / (1.0 - rate)


def _mix(h: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser, in place: int32 wraps as it should, and shifts must not copy the sign."""
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).mul_(FIRST)
    h.bitwise_xor_((h >> 13).bitwise_and_(0x7FFFF)).mul_(SECOND)
    return h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF))
