"""Who sees whom: the one mask rule, computed from positions and document ids that travel with the keys.

Causal masks: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3. Sliding windows: Mistral 7B, arXiv:2310.06825,
section 2. Prefix-LM: Raffel et al. 2019, arXiv:1910.10683, section 3.2.1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from onehop.parts.places import Places


@dataclass(frozen=True)
class Sees:
    """A visibility rule: causal (the past and itself), prefix (also a prefix, both ways) or all; and a window.

    A window of W tokens counts the own one: 0 <= i - j < W; for `all`, |i - j| < W.
    """

    kind: Literal["causal", "prefix", "all"] = "causal"
    window: int | None = None


class Sight:
    """A rule applied to T queries and S keys. Built once per step and distinct rule; all kernels read it.

    Empty slots (position -1) see nothing and are seen by nobody; documents do not see each other.
    """

    def __init__(self, sees: Sees, q: Places, k: Places, *, prefix: Tensor | None = None):
        self.sees, self.q, self.k = sees, q, k
        self.prefix = prefix  # (B,) length of each row's prefix, in tokens

    @cached_property
    def is_everything(self) -> bool:
        """Whether every query sees every key, as far as is known without reading a tensor."""
        if not self._plain_runs:
            return False
        first, last = self.q.first, self.q.first + self.q.n - 1  # type: ignore[operator]
        past = self.sees.kind == "all" or first >= self.k.first + self.k.n - 1  # type: ignore[operator]
        w = self.sees.window
        back = w is None or last - self.k.first < w  # type: ignore[operator]
        ahead = w is None or self.sees.kind != "all" or self.k.first + self.k.n - 1 - first < w  # type: ignore[operator]
        return past and back and ahead

    @cached_property
    def is_triangle(self) -> bool:
        """Whether this is the plain causal triangle over as many keys as queries, known without reading a tensor."""
        w = self.sees.window
        return (
            self._plain_runs
            and self.sees.kind == "causal"
            and (self.q.first, self.q.n) == (self.k.first, self.k.n)
            and (w is None or w >= self.q.n)
        )

    @cached_property
    def _plain_runs(self) -> bool:
        return self.q.first is not None and self.k.first is not None and self.prefix is None

    @cached_property
    def mask(self) -> Tensor:
        """(B | 1, 1, T, S) bool, True where the query sees the key: the definition."""
        return self._visible(self.q.at, self.k.at, self.q.doc, self.k.doc)

    def tile(self, rows: slice, cols: slice) -> Tensor | None:
        """The mask of some queries and some keys, (B | 1, 1, t, s); None where all is visible."""
        if self._plain_runs and Sight(self.sees, self.q.cut(rows), self.k.cut(cols)).is_everything:
            return None
        q, k = self.q.cut(rows), self.k.cut(cols)
        return self._visible(q.at, k.at, q.doc, k.doc)

    def is_blank(self, rows: slice, cols: slice) -> bool:
        """Whether no query of `rows` sees a key of `cols` (may say no where it would have to look closer)."""
        (q_low, q_high), (k_low, k_high) = self._range("q", rows), self._range("k", cols)
        if q_high < 0 or k_high < 0:
            return True  # nothing but empty slots
        if self.sees.kind == "causal" and k_low > q_high:
            return True
        w = self.sees.window
        if w is not None and (q_low - k_high >= w or (self.sees.kind == "all" and k_low - q_high >= w)):
            return True
        return self._other_documents(rows, cols)

    def _other_documents(self, rows: slice, cols: slice) -> bool:
        if self.q.doc is None or self.k.doc is None:
            return False
        (q_low, q_high), (k_low, k_high) = self._range("q_doc", rows), self._range("k_doc", cols)
        return q_high < k_low or k_high < q_low

    def _visible(self, q_at: Tensor, k_at: Tensor, q_doc: Tensor | None, k_doc: Tensor | None) -> Tensor:
        i, j = q_at.unsqueeze(-1), k_at.unsqueeze(-2)  # (B, T, 1), (B, 1, S)
        sees = (i >= 0) & (j >= 0)  # (B, T, S)
        if self.sees.kind == "causal":
            sees = sees & (j <= i)
        elif self.sees.kind == "prefix":
            past = j <= i
            sees = sees & (past if self.prefix is None else past | (j < self.prefix.view(-1, 1, 1)))
        if self.sees.window is not None:
            near = i - j < self.sees.window
            sees = sees & (near & (j - i < self.sees.window) if self.sees.kind == "all" else near)
        if q_doc is not None and k_doc is not None:
            sees = sees & (q_doc.unsqueeze(-1) == k_doc.unsqueeze(-2))
        return sees.unsqueeze(1)  # (B, 1, T, S)

    def _range(self, which: str, part: slice) -> tuple[int, int]:
        """Lowest and highest value in a slice of columns, empty slots left out; (0, -1) if all are empty."""
        places = self.q if which[0] == "q" else self.k
        if places.first is not None and "doc" not in which:
            stop = min(part.stop, places.n)
            return places.first + part.start, places.first + stop - 1
        key = (which, part.start, part.stop)
        if key not in self._ranges:
            at = places.at[:, part]
            value = places.doc[:, part] if "doc" in which and places.doc is not None else at
            real = at >= 0
            low = torch.where(real, value, torch.iinfo(value.dtype).max).amin()
            high = torch.where(real, value, torch.full_like(value, -1)).amax()
            self._ranges[key] = (int(low), int(high)) if int(high) >= 0 else (0, -1)
        return self._ranges[key]

    @cached_property
    def _ranges(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        return {}
