"""The base of all position schemes."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from onehop.base.errors import ConfigError

if TYPE_CHECKING:
    from onehop.parts.step import Step


class PositionScheme(nn.Module):
    """How attention knows where tokens stand. This base knows nothing: no order but what the mask gives.

    A scheme may turn q and k by angles (`turns`: it has `angles` and `rotate`), or add to the scores (`biases`: it has
    `forward`), or both. Keys are turned before they go into the cache, and stay so. Where angles depend on the text's
    length (`by_length`), it is the length at that moment: up to the text's last token in this pass.
    """

    turns = False
    biases = False
    relative = False  # whether what it adds to a score depends on the distance i - j alone
    by_length = False

    @property
    def key(self) -> Hashable:
        """What schemes with the same angles have in common; they are computed once per step."""
        return id(self)

    def turn(self, q: Tensor, k: Tensor, step: "Step") -> tuple[Tensor, Tensor]:
        """New queries (B, T, H, D) and keys (B, T, K, D), placed; keys as they go into the cache."""
        if not self.turns:
            return q, k
        cos, sin = step.angles(self, q)
        if q.size(1) == 1:  # for one token, copying q and k together costs less than turning each by itself
            both = self.rotate(torch.cat([q, k], dim=2), cos, sin)  # (B, 1, H + K, D)
            q, k = both.split_with_sizes([q.size(2), k.size(2)], 2)
            return q, k
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)

    def angles(self, at: Tensor, *, dtype: torch.dtype, length: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The cos and sin, for q of `dtype`, at positions (B, T): two tensors, as `rotate` wants them.

        With `by_length`, `length` (B,) or (B, T) is the number of tokens of each row's or each slot's text.
        """
        raise self._without("angles", "turns")

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Vectors (B, T, H, D) turned by what `angles` gave -> (B, T, H, D)."""
        raise self._without("rotate", "turns")

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        """What is added to the scores of queries at (B | 1, T) and keys at (B | 1, S) -> (B | 1, H, T, S)."""
        raise self._without("forward", "biases")

    def _without(self, method: str, promise: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} has no method {method}: define it, or leave {promise} = False")
