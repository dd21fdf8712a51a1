"""The operations that the tables of `formats` name, on tensors, forwards (theirs to ours) and backwards.

An operation works on shapes too: `save` of tensors on the meta device tells which shapes a file must hold.
"""

from collections.abc import Callable, Sequence
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


class AsRow:
    """A vector that is stored (1, n)."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.squeeze(0) for w in theirs]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.unsqueeze(0) for w in ours]


class Rows:
    """One tensor that holds several of ours, one below the other, `sizes` rows each."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return list(theirs[0].split(list(sizes)))

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [torch.cat(list(ours))]


class Columns:
    """One tensor stored (d_in, d_out) that holds several of ours side by side, `sizes` columns each."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.mT for w in theirs[0].split(list(sizes), dim=1)]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [torch.cat([w.mT for w in ours], dim=1)]


class Alternating:
    """One tensor that holds two of ours in its last dim, number by number in turn: (…, 2F) <-> (…, F) twice."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [theirs[0][..., 0::2], theirs[0][..., 1::2]]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [torch.stack(list(ours), dim=-1).flatten(-2)]


class AlternatingColumns(Alternating):
    """As `Alternating`, of matrices that are stored (d_in, d_out): (…, C, 2F) <-> (…, F, C) twice."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.mT for w in super().load(theirs, sizes)]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return super().save([w.mT for w in ours], sizes)


class Stack:
    """Many tensors of one shape, one per expert, that are one of ours."""

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [torch.stack(list(theirs))]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return list(ours[0].unbind())


class GroupedQKV:
    """Queries, keys and values in one tensor, group by group; sizes: kv heads K, query heads of each G, head width D.

    (K · (G + 2) · D, …) <-> (K · G · D, …), (K · D, …), (K · D, …).
    """

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        k, g, d = sizes
        parts = theirs[0].unflatten(0, (k, g + 2, d)).split([g, 1, 1], dim=1)  # (K, G | 1 | 1, D, …)
        return [part.flatten(0, 2) for part in parts]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        k, g, d = sizes
        parts = [w.unflatten(0, (k, n, d)) for w, n in zip(ours, (g, 1, 1), strict=True)]
        return [torch.cat(parts, dim=1).flatten(0, 2)]


class Turned:
    """Rows of heads whose first `width` dims are rotary pairs (2j, 2j + 1) there and (j, j + width/2) here.

    sizes: heads H, head width D, rotary width. (H · D, …) <-> (H · D, …), or (H, D) <-> (H, D).
    """

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [self._reorder(w, sizes, lambda pairs: pairs.unflatten(1, (-1, 2)).transpose(1, 2)) for w in theirs]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [self._reorder(w, sizes, lambda halves: halves.unflatten(1, (2, -1)).transpose(1, 2)) for w in ours]

    @staticmethod
    def _reorder(w: Tensor, sizes: Sizes, order: Callable[[Tensor], Tensor]) -> Tensor:
        heads, d_head, width = sizes
        turning, still = w.reshape(heads, d_head, -1).split([width, d_head - width], dim=1)  # (H, width | rest, …)
        return torch.cat([order(turning).flatten(1, 2), still], dim=1).reshape(w.shape)


class TurnedLast(Turned):
    """As `Turned`, of heads whose last `width` dims are the rotary pairs."""

    @staticmethod
    def _reorder(w: Tensor, sizes: Sizes, order: Callable[[Tensor], Tensor]) -> Tensor:
        heads, d_head, width = sizes
        still, turning = w.unflatten(0, (heads, d_head)).split([d_head - width, width], dim=1)
        return torch.cat([still, order(turning).flatten(1, 2)], dim=1).flatten(0, 1)


class PlusOne:
    """Weights of a norm that are stored around 1 there and around 0 here; the sum is taken in float32.

    It is undone bit for bit wherever float32 holds 1 + w exactly, as it does for every bfloat16 w from 2^-16 on.
    """

    def load(self, theirs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.float() - 1 for w in theirs]

    def save(self, ours: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        return [w.float() + 1 for w in ours]


OPS: Choices[Operation] = Choices(
    "weight operation",
    {
        "same": Same(),
        "transpose": Transpose(),
        "as_row": AsRow(),
        "rows": Rows(),
        "columns": Columns(),
        "alternating": Alternating(),
        "alternating_columns": AlternatingColumns(),
        "stack": Stack(),
        "grouped_qkv": GroupedQKV(),
        "turned": Turned(),
        "turned_last": TurnedLast(),
        "plus_one": PlusOne(),
    },
)
