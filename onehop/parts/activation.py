"""The non-linearities of feed-forward layers, by name."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.base.choices import Choices

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
