"""What queries look at: keys and values with the places they stand at."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from onehop.parts.places import Places


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys (B, S, K, D) and values (B, S, K, Dv), held densely.

    Other holders (paged, int8) offer the same readings; where `dense` has to copy, `whole` is False.
    """

    whole: ClassVar[bool] = True
    k: Tensor
    v: Tensor
    places: Places

    def dense(self) -> tuple[Tensor, Tensor]:
        """All keys and values, (B, S, K, D) and (B, S, K, Dv)."""
        return self.k, self.v

    def tiles(self, n: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Runs of at most `n` keys: their columns, (B, s, K, D) and (B, s, K, Dv)."""
        for start in range(0, self.k.size(1), n):
            cols = slice(start, min(start + n, self.k.size(1)))
            yield cols, self.k[:, cols], self.v[:, cols]
