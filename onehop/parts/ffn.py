"""Feed-forward layers, by name."""

from collections.abc import Callable

from torch import nn

from onehop.base.choices import Choices
from onehop.parts.dense import GatedFFN, PlainFFN
from onehop.parts.moe import MoE

__all__ = ["FFNS", "GatedFFN", "PlainFFN"]

FFNS: Choices[Callable[..., nn.Module]] = Choices("ffn", {"plain": PlainFFN, "gated": GatedFFN, "moe": MoE})
