"""Who sees whom: the one mask rule, computed from positions and document ids that travel with the keys.

Causal masks: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3. Sliding windows: Mistral 7B, arXiv:2310.06825,
section 2. Prefix-LM: Raffel et al. 2019, arXiv:1910.10683, section 3.2.1.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

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

    def pairs(
        self, i: Tensor, j: Tensor, *, i_doc: Tensor | None, j_doc: Tensor | None, prefix: Tensor | None
    ) -> Tensor:
        """Whether queries at positions `i`, in documents `i_doc`, see keys at `j`: the definition, for any shapes."""
        sees = (i >= 0) & (j >= 0)
        if self.kind != "all":
            past = j <= i
            sees = sees & (past if self.kind == "causal" or prefix is None else past | (j < prefix))
        if self.window is not None:
            sees = sees & (i - j < self.window)
            if self.kind == "all":
                sees = sees & (j - i < self.window)
        if i_doc is not None and j_doc is not None:
            sees = sees & (i_doc == j_doc)
        return sees


class Sight:
    """A rule applied to T queries and S keys. Built once per step and distinct rule; all kernels read it.

    Empty slots (position -1) see nothing and are seen by nobody; documents do not see each other.
    """

    def __init__(self, sees: Sees, q: Places, k: Places, *, prefix: Tensor | None = None):
        self.sees, self.q, self.k = sees, q, k
        self.prefix = prefix  # (B,) length of each row's prefix, in tokens
        self._mask: Tensor | None = None
        self._looked: dict[tuple[bool, int, int], tuple[int, ...]] = {}
        self.kept: dict[Hashable, Any] = {}  # what kernels make of it, once for all layers that share it

    @property
    def is_everything(self) -> bool:
        """Whether every query sees every key, as far as is known without reading a tensor."""
        if self.q.first is None or self.k.first is None:
            return False
        return self._runs_see(self.q.first, self.q.n, self.k.first, self.k.n)

    @property
    def is_triangle(self) -> bool:
        """Whether this is the plain causal triangle over as many keys as queries, known without reading a tensor."""
        w = self.sees.window
        return (
            self.q.first is not None
            and (self.q.first, self.q.n) == (self.k.first, self.k.n)
            and (self.sees.kind == "causal" or (self.sees.kind == "prefix" and self.prefix is None))
            and (w is None or w >= self.q.n)
        )

    @property
    def mask(self) -> Tensor:
        """(B | 1, 1, T, S) bool, True where the query sees the key."""
        if self._mask is None:
            self._mask = self._visible(self.q, self.k)
        return self._mask

    def tile(self, rows: slice, cols: slice) -> Tensor | None:
        """The mask of some queries and some keys, (B | 1, 1, t, s); None where all is known to be visible."""
        q, k = self.q.cut(rows), self.k.cut(cols)
        if q.first is not None and k.first is not None:
            return None if self._runs_see(q.first, q.n, k.first, k.n) else self._visible(q, k)
        return None if self._is_full(rows, cols) else self._visible(q, k)

    def is_blank(self, rows: slice, cols: slice) -> bool:
        """Whether no query of `rows` sees a key of `cols` (may say no where it would have to look closer)."""
        (q_low, q_high), (k_low, k_high) = self._range(self.q, rows), self._range(self.k, cols)
        if q_high < 0 or k_high < 0:
            return True  # nothing but empty slots
        past_only = self.sees.kind == "causal" or (self.sees.kind == "prefix" and self.prefix is None)
        if past_only and k_low > q_high:
            return True
        w = self.sees.window
        if w is not None and (q_low - k_high >= w or (self.sees.kind == "all" and k_low - q_high >= w)):
            return True
        if self.q.doc is None or self.k.doc is None:
            return False
        (q_low, q_high), (k_low, k_high) = self._range(self.q, rows, doc=True), self._range(self.k, cols, doc=True)
        return q_high < k_low or k_high < q_low

    def _is_full(self, rows: slice, cols: slice) -> bool:
        """Whether every query of `rows` sees every key of `cols` (may say no where it would have to look closer)."""
        if self._has_empty(self.q, rows) or self._has_empty(self.k, cols):
            return False
        (q_low, q_high), (k_low, k_high) = self._range(self.q, rows), self._range(self.k, cols)
        if not self._runs_see(q_low, q_high - q_low + 1, k_low, k_high - k_low + 1):
            return False
        if self.q.doc is None or self.k.doc is None:
            return True
        docs = {*self._range(self.q, rows, doc=True), *self._range(self.k, cols, doc=True)}
        return len(docs) == 1

    def _runs_see(self, q_first: int, n_q: int, k_first: int, n_k: int) -> bool:
        """Whether all queries of a stretch see all keys of one (a prefix is not looked at: only the past is)."""
        q_last, k_last, w = q_first + n_q - 1, k_first + n_k - 1, self.sees.window
        if min(q_first, k_first) < 0 or (self.sees.kind != "all" and k_last > q_first):
            return False
        return w is None or (q_last - k_first < w and (self.sees.kind != "all" or k_last - q_first < w))

    def _visible(self, q: Places, k: Places) -> Tensor:
        i, j = q.at.unsqueeze(-1), k.at.unsqueeze(-2)  # (B, T, 1), (B, 1, S)
        i_doc = None if q.doc is None else q.doc.unsqueeze(-1)
        j_doc = None if k.doc is None else k.doc.unsqueeze(-2)
        prefix = None if self.prefix is None else self.prefix.view(-1, 1, 1)
        return self.sees.pairs(i, j, i_doc=i_doc, j_doc=j_doc, prefix=prefix).unsqueeze(1)  # (B, 1, T, S)

    def _has_empty(self, places: Places, part: slice) -> bool:
        return places.first is None and self._look(places, part)[4] < 0

    def _range(self, places: Places, part: slice, *, doc: bool = False) -> tuple[int, int]:
        """Lowest and highest position or document id among some slots, without empty ones; (0, -1) if all are."""
        if places.first is not None and not doc:
            return places.first + part.start, places.first + min(part.stop, places.n) - 1
        low, high, low_doc, high_doc, _ = self._look(places, part)
        return (0, -1) if high < 0 else (low_doc, high_doc) if doc else (low, high)

    def _look(self, places: Places, part: slice) -> tuple[int, ...]:
        """Lowest and highest position, then document id, of filled slots, and the lowest position of all; read once."""
        key = (places is self.q, part.start, part.stop)
        if key not in self._looked:
            at = places.at[:, part]
            found = []
            for x in (at, at if places.doc is None else places.doc[:, part]):
                limits = torch.iinfo(x.dtype)
                found += [torch.where(at >= 0, x, limits.max).amin(), torch.where(at >= 0, x, limits.min).amax()]
            self._looked[key] = tuple(torch.stack([*found, at.amin()]).tolist())
        return self._looked[key]
