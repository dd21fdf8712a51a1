"""Where tokens stand: positions and document ids, and what is known about them without reading a tensor."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Positions `at` (B | 1, T) int64, counted in tokens from 0, -1 for an empty slot or padding; `doc` (B, T) or none.

    `first` is a static fact: at[b, t] = first + t for every row, nothing empty, one document. None: not known.
    """

    at: Tensor
    doc: Tensor | None = None
    first: int | None = None

    @classmethod
    def run(cls, first: int, n: int, device: torch.device | str = "cpu") -> "Places":
        """`n` tokens in a row from position `first`, alike in every row of the batch."""
        return cls(torch.arange(first, first + n, device=device).unsqueeze(0), None, first)  # (1, T)

    @property
    def n(self) -> int:
        """Slots per row."""
        return self.at.size(1)

    def real(self) -> Tensor | None:
        """(B, T) bool: which slots hold a token; None if all do (known without reading)."""
        return None if self.first is not None else self.at >= 0

    def cut(self, cols: slice) -> "Places":
        """Some of the slots."""
        first = None if self.first is None else self.first + (cols.start or 0)
        return Places(self.at[:, cols], None if self.doc is None else self.doc[:, cols], first)
