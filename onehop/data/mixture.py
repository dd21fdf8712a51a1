"""Several texts read in fixed shares: which of them gives which row, computed for any row without those before it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from onehop.data.draws import uniform

Part = TypeVar("Part")


@dataclass(frozen=True)
class Mixture(Generic[Part]):
    """Texts, and of each the share of all tokens that come from it."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    parts: tuple[Part, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights as shares of 1."""
        return tuple(weight / sum(self.weights) for weight in self.weights)


class Turns:
    """Who gives row 0, 1, 2, …: item i is due at the times (j + offset) / share for j = 0, 1, 2, …; rows go by time.

    So of the first n rows every item has its share to within `len(shares)` + 1 rows, for every n. The offsets, drawn
    from `seed`, say who begins.
    """

    def __init__(self, shares: np.ndarray, *, seed: int):
        self.shares = shares / shares.sum()
        self.offsets = uniform(np.arange(len(shares)), seed)

    def at(self, first: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """For the rows first, …, first + n - 1: (whose they are (n,), which of that item's own rows (n,))."""
        # Row r lies less than len(shares) from time r. One more on each side, for what is rounded.
        slack = len(self.shares) + 1
        begin = np.floor((first - slack) * self.shares).clip(0).astype(np.int64)
        end = np.ceil((first + n + slack) * self.shares).astype(np.int64) + 1
        item = np.repeat(np.arange(len(begin)), end - begin)
        index = np.concatenate([np.arange(a, b) for a, b in zip(begin, end, strict=True)])
        order = np.lexsort((item, (index + self.offsets[item]) / self.shares[item]))
        chosen = order[first - int(begin.sum()) :][:n]
        return item[chosen], index[chosen]
