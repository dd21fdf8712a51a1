"""The non-linearities of feed-forward layers, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.base.choices import Choices
from onehop.config.ffn import GateConfig

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """The input times Φ(x), the exact normal distribution function. Hendrycks and Gimpel 2016, arXiv:1606.08415."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """As `gelu`, with Φ approximated by a tanh (ibid.); up to 5e-4 away from `gelu`."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """The square of relu(x). So et al. 2021 (Primer), arXiv:2109.08668, section 3."""
    return F.relu(x).square()


def silu(x: Tensor) -> Tensor:
    """The input times σ(x). Elfwing et al. 2017, arXiv:1702.03118; as Swish: arXiv:1710.05941."""
    return F.silu(x)


def none(x: Tensor) -> Tensor:
    """The input itself: with a gate this is the bilinear layer of arXiv:2002.05202, equation 5."""
    return x


ACTIVATIONS: Choices[Activation] = Choices(
    "ffn.activation",
    {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "relu": F.relu,
        "relu2": relu2,
        "sigmoid": torch.sigmoid,
        "none": none,
    },
)


@dataclass(frozen=True)
class Swish:
    """The input times σ(gain · input). Ramachandran et al. 2017, arXiv:1710.05941, equation 1."""

    gain: float

    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.gain * x)


def activation(cfg: Any) -> Activation:
    """The non-linearity that a feed-forward layer's config asks for."""
    gain = cfg.swish_gain if isinstance(cfg, GateConfig) else 1.0
    return ACTIVATIONS.get(cfg.activation) if gain == 1.0 else Swish(gain)


@dataclass(frozen=True)
class Gate:
    """Product act(gate) ⊙ up, element by element."""

    act: Activation

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.act(gate) * up


@dataclass(frozen=True)
class ClampedGate(Gate):
    """Product act(min(gate, limit)) ⊙ (min(max(up, -limit), limit) + offset), as in the release of arXiv:2508.10925."""

    limit: float | None
    offset: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.act(gate) * (up + self.offset)


def gate(cfg: Any) -> Gate:
    """The gate that a feed-forward layer's config (a GateConfig with an activation) asks for."""
    act = activation(cfg)
    return Gate(act) if cfg.clamp is None and cfg.up_offset == 0 else ClampedGate(act, cfg.clamp, cfg.up_offset)
