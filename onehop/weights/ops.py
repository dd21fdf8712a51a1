"""The operations that the tables of `formats` name, on tensors, forwards (theirs to ours) and backwards.

An operation works on shapes too: `save` of tensors on the meta device tells which shapes a file must hold.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from onehop.base.choices import Choices

Sizes = tuple[int, ...]


class Operation(Protocol):
    """Two functions that undo each other bit for bit."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """Their tensors -> ours."""

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """Our tensors -> theirs."""


class Same:
    """Nothing changes."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return list(theirs)

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return list(ours)


class Transpose:
    """A matrix that is stored (d_in, d_out)."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.mT for w in theirs]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.mT for w in ours]


class Rows:
    """One tensor that holds several of ours, one below the other, `sizes` rows each."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return list(theirs[0].split(list(sizes)))

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [torch.cat(list(ours))]


OPS: Choices[Operation] = Choices("weight operation", {"same": Same(), "transpose": Transpose(), "rows": Rows()})
