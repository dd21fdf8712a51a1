"""A position bias by tiles: its values for some queries and some keys, and the way back from their gradients.

A bias that depends on i - j alone has T + S - 1 values per head over runs of tokens. They are computed once, as a
strip, and every tile is a view of it: row a, column b of a tile hold value a + b, if its keys stand in reverse order.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onehop.parts.score_plain import wide
from onehop.parts.sight import Sight


class TiledBias(Protocol):
    """What the tiles ask of a bias. `reverse`: the columns of its tiles stand in reverse order."""

    reverse: bool
    gradients: list[Tensor]

    def tile(self, rows: slice, cols: slice) -> Tensor:
        """The bias of some queries and some keys, (B | 1, H | 1, t, s)."""
        ...

    def learn(self, rows: slice, cols: slice, d: Tensor) -> None:
        """Take in the gradient of a tile, (B, H, t, s)."""
        ...

    def finish(self) -> None:
        """Complete `gradients`, one for each learned tensor."""
        ...


def tiled_bias(bias: nn.Module, sight: Sight, learned: dict[str, Tensor] | None = None) -> TiledBias:
    """A bias for the tiles of `sight`; with `learned` tensors in place of the module's, also the way back to them."""
    runs = sight.q.first is not None and sight.k.first is not None and sight.q.n > 0 and sight.k.n > 0
    if runs and getattr(bias, "relative", False):
        return Strip(bias, sight, learned or {})
    return Direct(bias, sight, learned or {})


class Direct:
    """Any bias: the module is asked again for each tile."""

    reverse = False

    def __init__(self, bias: nn.Module, sight: Sight, learned: dict[str, Tensor]):
        self.bias, self.sight = bias, sight
        self.learned = {name: x.detach().requires_grad_() for name, x in learned.items()}
        self.gradients = [torch.zeros_like(wide(x)) for x in learned.values()]
        self.values: Tensor | None = None  # of the tile that was asked for last

    def tile(self, rows: slice, cols: slice) -> Tensor:
        """The module's values there, (B | 1, H | 1, t, s)."""
        at = self.sight.q.at[:, rows], self.sight.k.at[:, cols]
        with torch.set_grad_enabled(bool(self.learned)):
            self.values = functional_call(self.bias, self.learned, at) if self.learned else self.bias(*at)
        return self.values.detach()

    def learn(self, rows: slice, cols: slice, d: Tensor) -> None:
        """Go back through the module at once, for the tile that was asked for last."""
        assert self.values is not None
        _go_back(self.values, d.sum_to_size(self.values.shape), self.learned, self.gradients)

    def finish(self) -> None:
        """Give the gradients the type of their tensors."""
        self.gradients = [d.to(x.dtype) for d, x in zip(self.gradients, self.learned.values())]


class Strip:
    """A bias that depends on i - j alone, over runs of tokens."""

    reverse = True

    def __init__(self, bias: nn.Module, sight: Sight, learned: dict[str, Tensor]):
        assert sight.q.first is not None
        assert sight.k.first is not None
        self.first = sight.q.first - sight.k.first  # i - j of the first query and the first key
        self.n_keys = sight.k.n
        self.learned = {name: x.detach().requires_grad_() for name, x in learned.items()}
        self.gradients = [torch.zeros_like(x) for x in learned.values()]
        lowest = self.first - (self.n_keys - 1)
        here = max(0, -lowest)  # where the one key is put, so that no query stands below 0
        n = sight.q.n + self.n_keys - 1
        q_at = torch.arange(lowest + here, lowest + here + n, device=sight.q.at.device).unsqueeze(0)  # (1, n)
        at = q_at, q_at.new_full((1, 1), here)
        with torch.set_grad_enabled(bool(learned)):
            out = functional_call(bias, self.learned, at) if learned else bias(*at)  # (1, H, n, 1)
            self.values: Tensor = out[0, :, :, 0]  # (H, n)
        self.strip = wide(self.values.detach()).contiguous()
        self.d_strip = torch.zeros_like(self.strip) if learned else None

    def tile(self, rows: slice, cols: slice) -> Tensor:
        """A view of the strip, (1, H | 1, t, s), its columns in reverse order."""
        h, n = self.strip.shape
        shape = (1, h, rows.stop - rows.start, cols.stop - cols.start)
        return self.strip.as_strided(shape, (h * n, n, 1, 1), self._start(rows, cols))

    def learn(self, rows: slice, cols: slice, d: Tensor) -> None:
        """Add the sums of the diagonals to the strip's gradient."""
        assert self.d_strip is not None
        d = d.sum(dim=0)  # (H, t, s)
        h, t, s = d.shape
        width = t + s - 1
        skewed = d.new_zeros(h, t, width)  # each row one to the right of the one above, so that diagonals are columns
        skewed.as_strided((h, t, s), (t * width, width + 1, 1)).copy_(d)
        start = self._start(rows, cols)
        total = skewed.sum(dim=1)  # (H, t + s - 1)
        self.d_strip[:, start : start + width] += total if self.strip.size(0) == h else total.sum(0)

    def finish(self) -> None:
        """Go back through the module, for the whole strip."""
        if self.d_strip is not None:
            _go_back(self.values, self.d_strip, self.learned, self.gradients)

    def _start(self, rows: slice, cols: slice) -> int:
        """Where the strip holds the first query and the last key of a tile."""
        return rows.start - (cols.stop - 1) + self.n_keys - 1


def _go_back(values: Tensor, d: Tensor, learned: dict[str, Tensor], totals: list[Tensor]) -> None:
    parts = torch.autograd.grad(values, list(learned.values()), d.to(values.dtype), allow_unused=True)
    for total, part in zip(totals, parts):
        if part is not None:
            total.add_(part)
