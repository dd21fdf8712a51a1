"""Which slots of a cache new tokens take, and which are read: growing, fixed and ring."""

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.base.errors import RequestError
from onehop.parts.places import Places


class Book:
    """Places of the slots that several layers share. A store is (B, K, slots, D) or (B, slots, D)."""

    def __init__(self, batch: int, device: torch.device, *, capacity: int | None, margin: int = 0):
        self.batch, self.device = batch, device
        self.capacity = capacity or 0
        self.margin = margin
        self.at = torch.full((batch, self.slots), -1, dtype=torch.int64, device=device)  # (B, slots)
        self.doc: Tensor | None = None  # (B, slots), once a step has documents
        self.next_at = torch.zeros(batch, dtype=torch.int64, device=device)  # (B,) position of each row's next token
        self.uniform: int | None = 0  # next_at where it is the same in all rows, without reading it
        self.places = Places.run(0, 0, device)  # of the slots that this step reads

    @property
    def slots(self) -> int:
        """Slots that a store has."""
        return self.capacity

    @property
    def length(self) -> int:
        """Tokens in the longest row."""
        return self.uniform if self.uniform is not None else int(self.next_at.max())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A store of zeros for one entry: (K, D) -> (B, K, slots, D), or (D,) -> (B, slots, D)."""
        return torch.zeros(self.batch, *shape[:-1], self.slots, shape[-1], dtype=dtype, device=self.device)

    def start(self, new: Places) -> None:
        """Give the new tokens their slots and set `places` to what this step reads."""
        self._advance(new)

    def look(self) -> None:
        """Set `places` anew from what stands in the book."""
        self.places = Places(self.at, self.doc)

    def write(self, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Put (B, T, …, D) into this step's slots -> (the store, what is read of it, (B, S, …, D))."""
        raise AssertionError("each kind of book writes by itself")

    def check_rollback(self, keep: Tensor) -> None:
        """Raise RequestError if tokens needed after a rollback to `keep` (B,) are gone."""

    def rollback(self, keep: Tensor) -> None:
        """Empty every slot at a position >= keep[b]."""
        self.at.masked_fill_(self.at >= keep.unsqueeze(1), -1)
        self._set_next(keep.clone())

    def pick(self, rows: Tensor) -> None:
        """Row b becomes the old row rows[b]."""
        self.at = self.at.index_select(0, rows)
        self.doc = None if self.doc is None else self.doc.index_select(0, rows)
        self.next_at = self.next_at.index_select(0, rows)
        self.batch = rows.numel()

    def _advance(self, new: Places) -> None:
        """Move next_at past the new tokens; padding (-1) does not count."""
        if new.first is not None:
            self.uniform = new.first + new.n
            self.next_at = torch.full((self.batch,), self.uniform, dtype=torch.int64, device=self.device)
        elif new.n:
            self.uniform = None
            self.next_at = torch.maximum(self.next_at, new.at.expand(self.batch, -1).amax(dim=1) + 1)

    def _set_next(self, next_at: Tensor) -> None:
        self.next_at = next_at
        low, high = (int(next_at.min()), int(next_at.max())) if next_at.numel() else (0, 0)
        self.uniform = low if low == high else None

    def _note(self, new: Places, slots: slice | Tensor) -> None:
        """Write down where the new tokens stand."""
        self.at[:, slots] = new.at
        if new.doc is not None and self.doc is None:
            self.doc = torch.zeros_like(self.at)
        if self.doc is not None:
            self.doc[:, slots] = 0 if new.doc is None else new.doc.to(self.doc.dtype)


class Growing(Book):
    """Takes what comes: stores double when they are full, and only filled slots are read."""

    def __init__(self, batch: int, device: torch.device, *, capacity: int | None, margin: int = 0):
        super().__init__(batch, device, capacity=capacity or 64, margin=margin)
        self.filled = 0
        self.run = True  # slots hold positions 0, 1, 2 … in every row
        self._part = slice(0, 0)

    @classmethod
    def of(cls, book: "Fixed") -> "Growing":
        """One that goes on where a fixed book is, with its slots, of which only the filled ones are read."""
        growing = cls(book.batch, book.device, capacity=book.capacity)
        growing.at, growing.doc, growing.filled = book.at, book.doc, book.filled
        growing._set_next(book.next_at)
        run = torch.arange(book.filled, device=book.device)
        growing.run = book.doc is None and bool((book.at[:, : book.filled] == run).all())
        return growing

    def start(self, new: Places) -> None:
        start, stop = self.filled, self.filled + new.n
        while stop > self.at.size(1):
            self.at = _doubled(self.at, 1, -1)
            self.doc = None if self.doc is None else _doubled(self.doc, 1, 0)
        self.capacity = self.at.size(1)
        self.run = self.run and new.first == start and new.doc is None
        self._part, self.filled = slice(start, stop), stop
        self._note(new, self._part)
        self._advance(new)
        if self.run:
            self.places = Places.run(0, stop, self.device)
        else:
            self.places = Places(self.at[:, :stop], None if self.doc is None else self.doc[:, :stop])

    def write(self, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        while store.size(-2) < self.capacity:
            store = _doubled(store, -2, 0)
        store.narrow(-2, self._part.start, new.size(1)).copy_(new.transpose(1, -2))
        return store, store.narrow(-2, 0, self.filled).transpose(1, -2)

    def rollback(self, keep: Tensor) -> None:
        super().rollback(keep)
        if self.run and self.uniform is not None:
            self.filled = self.uniform
        self.run = self.run and self.uniform is not None


class Fixed(Book):
    """Room for `capacity` slots, all of them read at each step: shapes do not depend on the fill."""

    def __init__(self, batch: int, device: torch.device, *, capacity: int | None, margin: int = 0):
        super().__init__(batch, device, capacity=capacity, margin=margin)
        self.filled = 0
        self._slots = torch.arange(0, device=device)  # (T,)

    def start(self, new: Places) -> None:
        stop = self.filled + new.n
        if stop > self.capacity:
            raise RequestError(
                f"the cache has room for {self.capacity} tokens and {stop} are needed. Give it a larger capacity."
            )
        self._slots = torch.arange(self.filled, stop, device=self.device)
        self._note(new, slice(self.filled, stop))
        self.filled = stop
        self._advance(new)
        self.look()

    @classmethod
    def of(cls, book: Growing) -> "Fixed":
        """One that goes on where a growing book is, with as many slots."""
        fixed = cls(book.batch, book.device, capacity=book.capacity)
        fixed.at, fixed.doc, fixed.filled = book.at, book.doc, book.filled
        fixed.next_at, fixed.uniform = book.next_at, book.uniform
        fixed.look()
        return fixed

    def grow(self, times: int) -> None:
        """Have that many times as many slots."""
        more = max(1, self.capacity) * times - self.capacity
        self.at = F.pad(self.at, (0, more), value=-1)
        self.doc = None if self.doc is None else F.pad(self.doc, (0, more))
        self.capacity += more
        self.look()

    def write(self, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        store.index_copy_(store.dim() - 2, self._slots, new.transpose(1, -2))
        return store, store.transpose(1, -2)

    def rollback(self, keep: Tensor) -> None:
        super().rollback(keep)
        taken = (self.at >= 0).any(dim=0).nonzero()
        self.filled = int(taken.max()) + 1 if taken.numel() else 0


class Ring(Book):
    """The last `capacity` + `margin` positions of each row: position p lies in slot p mod that number.

    One slot more takes what is not kept (padding, tokens that a long step has already pushed out), with position -1.
    """

    def __init__(self, batch: int, device: torch.device, *, capacity: int | None, margin: int = 0):
        self.window = capacity or 1
        super().__init__(batch, device, capacity=self.window + margin, margin=margin)
        self._index = self.at  # (B, T) slots of this step

    @property
    def slots(self) -> int:
        return self.capacity + 1

    def start(self, new: Places) -> None:
        if new.doc is not None:
            raise RequestError("a ring holds one text per row, not packed documents. Use a growing or a fixed cache.")
        at = new.at.expand(self.batch, -1)  # (B, T)
        self._advance(new)
        last = self.next_at.unsqueeze(1) - 1  # (B, 1)
        kept = (at >= 0) & (at > last - self.capacity)
        self._index = torch.where(kept, at % self.capacity, self.capacity)
        before = None if new.n == 1 else self.at.clone()
        self.at.scatter_(1, self._index, torch.where(kept, at, -1))
        self.places = Places(self.at if before is None else torch.cat([before, at], dim=1))

    def write(self, store: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        moved = new.transpose(1, -2)  # (B, K, T, D)
        read = (store if new.size(1) == 1 else torch.cat([store, moved], dim=-2)).transpose(1, -2)
        index = self._index.view(self.batch, *(1,) * (moved.dim() - 3), new.size(1), 1).expand_as(moved)
        store.scatter_(store.dim() - 2, index, moved)
        return store, read

    def check_rollback(self, keep: Tensor) -> None:
        needed = (keep - self.window + 1).clamp(min=0).unsqueeze(1)  # (B, 1) positions from here to keep
        held = ((self.at >= needed) & (self.at < keep.unsqueeze(1))).sum(dim=1)  # (B,)
        if bool((held < keep - needed.squeeze(1)).any()):
            raise RequestError(
                f"cannot roll back to {keep.tolist()} tokens: the ring of {self.capacity} has overwritten keys that "
                f"the window of {self.window} needs. Use a growing cache or a larger margin."
            )


def _doubled(store: Tensor, dim: int, fill: int) -> Tensor:
    """The store with twice as many slots, the new ones filled with `fill`."""
    return torch.cat([store, torch.full_like(store, fill)], dim=dim)


BOOKS: dict[str, type[Book]] = {"growing": Growing, "fixed": Fixed, "ring": Ring}
