"""Everything between q·k and the softmax, as one description that every kernel reads."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from onehop.parts.dropout import DropKey


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """score = cap · tanh(scale · q·k / cap) + bias(i, j), then `change`, a mask (Sight), softmax beside `sinks`.

    `bias` maps positions (B | 1, T), (B | 1, S) to (B | 1, H, T, S); it may have parameters; an attribute `relative`
    that is true says that it depends on i - j alone. `change` maps scores (B, H, T, S) and the same positions to new
    scores: a rule of a user's own, known to `plain` only. `sinks` (H,) are extra scores that take weight and give
    nothing back. `dropout` falls on the weights.
    """

    scale: float
    softcap: float | None = None
    bias: nn.Module | None = None
    change: nn.Module | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    drop_key: DropKey | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but the scale stands there."""
        return (
            self.bias is None and self.change is None and self.sinks is None
            and self.softcap is None and self.drop_key is None
        )  # fmt: skip

    def dropping(self, key: DropKey | None) -> "ScoreRule":
        """The same rule with weights dropped by `key` (None: none dropped)."""
        return self if key is None or self.dropout == 0.0 else replace(self, drop_key=key)

    def adding(self, bias: nn.Module) -> "ScoreRule":
        """The same rule with one bias more."""
        return replace(self, bias=bias if self.bias is None else SumOfBiases(self.bias, bias))


class SumOfBiases(nn.Module):
    """Two score biases, added: positions (B | 1, T), (B | 1, S) -> (B | 1, H, T, S)."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second
        self.relative = getattr(first, "relative", False) and getattr(second, "relative", False)

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        """The sum at these positions."""
        total: Tensor = self.first(q_at, k_at) + self.second(q_at, k_at)
        return total


def learned(bias: nn.Module | None) -> dict[str, Tensor]:
    """The tensors of a bias that want a gradient, by name."""
    if bias is None or not torch.is_grad_enabled():
        return {}
    return {name: x for name, x in (*bias.named_parameters(), *bias.named_buffers()) if x.requires_grad}
