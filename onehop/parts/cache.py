"""The KV cache of a model: one `LayerCache` per layer, positions and document ids beside the keys.

At each step only the newest tokens' keys and values are computed; the past is read from here (Shazeer 2019,
arXiv:1911.02150, section 2.3). An empty slot has position -1. Layers that keep the same slots share one `Book` of
places (`parts/book.py`), and the model, not a layer, starts a step. Caches are for inference: no gradient flows into
the past.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.base.errors import ConfigError, RequestError
from onehop.parts.book import BOOKS, Book, Fixed, Growing
from onehop.parts.keys import Keys
from onehop.parts.places import Places

KINDS = ("growing", "fixed", "ring")


@dataclass(frozen=True)
class CacheSpec:
    """What one layer keeps per token: named entries with their shapes, for example k (K, D) and v (K, D)."""

    entries: Mapping[str, tuple[int, ...]]
    window: int | None = None  # how many tokens back the layer looks; None: all

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token takes in this layer."""
        return sum(torch.Size(shape).numel() for shape in self.entries.values()) * dtype.itemsize


class LayerCache:
    """The past of one layer, and (encoder-decoder) the encoder's keys, written once."""

    def __init__(self, spec: CacheSpec, book: Book, dtype: torch.dtype):
        self.spec, self.book, self.dtype = spec, book, dtype
        self.stores = {name: book.empty(shape, dtype) for name, shape in spec.entries.items()}
        self.cross: Keys | None = None

    def extend(self, *, k: Tensor, v: Tensor) -> Keys:
        """Write the new tokens' k and v (B, T, K, D) -> all keys that may be read now, the new tokens' included."""
        read, places = self.write(k=k, v=v)
        return Keys(read["k"], read["v"], places)

    def write(self, **new: Tensor) -> tuple[dict[str, Tensor], Places]:
        """Write the new tokens' entries, each (B, T, …) -> all that may be read now (B, S, …), and its places."""
        read = {}
        for name, value in new.items():
            value = value.detach() if value.requires_grad else value
            value = value if value.dtype is self.dtype else value.to(self.dtype)
            self.stores[name], read[name] = self.book.write(self.stores[name], value)
        return read, self.book.places

    @property
    def length(self) -> int:
        """Tokens in the longest row."""
        return self.book.length

    @property
    def nbytes(self) -> int:
        """Bytes held, empty slots included."""
        cross = [self.cross.k, self.cross.v] if self.cross is not None else []
        return sum(t.numel() * t.element_size() for t in [*self.stores.values(), *cross])

    def fill_up(self) -> None:
        """Have as many slots as a book of a fixed number of them."""
        for name, store in self.stores.items():
            more = self.book.slots - store.size(-2) if isinstance(self.book, Fixed) else 0
            self.stores[name] = F.pad(store, (0, 0, 0, more)) if more else store

    def pick(self, rows: Tensor) -> None:
        """Row b becomes the old row rows[b], (B',) int64."""
        self.stores = {name: store.index_select(0, rows) for name, store in self.stores.items()}
        if self.cross is not None:
            places = self.cross.places
            at = places.at if places.at.size(0) == 1 else places.at.index_select(0, rows)
            doc = None if places.doc is None else places.doc.index_select(0, rows)
            places = Places(at, doc, places.first)
            self.cross = Keys(self.cross.k.index_select(0, rows), self.cross.v.index_select(0, rows), places)


class Cache:
    """All layers' pasts. `start` gives the new tokens their slots; then each layer extends its own."""

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        batch: int,
        kind: str = "growing",
        capacity: int | None = None,
        margin: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        """A cache for `batch` rows.

        growing: takes what comes (`capacity` is a first guess). fixed: room for `capacity` tokens, shapes never change.
        ring: layers with a window keep only the window (and `margin` tokens more, for rollback); others grow.
        """
        if kind not in KINDS:
            raise ConfigError(f"cache kind {kind!r} does not exist. Known: {', '.join(KINDS)}.")
        if kind == "fixed" and capacity is None:
            raise ConfigError("a fixed cache needs a capacity in tokens")
        self.kind, self.batch = kind, batch
        books: dict[tuple[str, int | None], Book] = {}
        self.layers: list[LayerCache] = []
        for spec in specs:
            ring = kind == "ring" and spec.window is not None
            key = ("ring", spec.window) if ring else ("growing" if kind == "ring" else kind, None)
            if key not in books:
                size = spec.window if ring else capacity
                books[key] = BOOKS[key[0]](batch, torch.device(device), capacity=size, margin=margin)
            self.layers.append(LayerCache(spec, books[key], dtype))
        self.books = list(books.values())

    def start(self, new: Places) -> None:
        """Begin a step: give the new tokens (B | 1, T) their slots in every layer."""
        if new.at.size(0) not in (1, self.batch):
            raise RequestError(f"this cache holds {self.batch} rows, not {new.at.size(0)}")
        for book in self.books:
            book.start(new)

    def fix(self) -> None:
        """From now on have as many slots as there are, all of which are read at each step: growing becomes fixed."""
        self._go_on_in("fixed", [Fixed.of(book) if isinstance(book, Growing) else book for book in self.books])

    def loosen(self) -> None:
        """From now on read only what is filled, and take what comes: fixed becomes growing."""
        self._go_on_in("growing", [Growing.of(book) if isinstance(book, Fixed) else book for book in self.books])

    def _go_on_in(self, kind: str, books: list[Book]) -> None:
        for layer in self.layers:
            layer.book = books[self.books.index(layer.book)]
        self.kind, self.books = kind, books

    def short(self, n: int) -> list[Fixed]:
        """The books of a fixed number of slots in which `n` more tokens have no room."""
        return [book for book in self.books if isinstance(book, Fixed) and book.filled + n > book.capacity]

    def make_room(self, n: int, *, times: int = 2) -> None:
        """Let the next `n` tokens have slots where their number is fixed: it becomes `times` as many until they do."""
        short = self.short(n)
        for book in short:
            while book.filled + n > book.capacity:
                book.grow(times)
        for layer in self.layers if short else ():
            layer.fill_up()

    def look(self) -> None:
        """Say anew where the slots that a step reads stand; where this is compiled, they are the graph's own then."""
        for book in self.books:
            book.look()

    @property
    def length(self) -> int:
        """Tokens in the longest row."""
        return max((book.length for book in self.books), default=0)

    @property
    def lengths(self) -> Tensor:
        """(B,) int64: the position that each row's next token will take."""
        return self.books[0].next_at

    def next_places(self, n: int) -> Places:
        """Places of `n` further tokens in every row."""
        book = self.books[0]
        if book.uniform is not None:
            return Places.run(book.uniform, n, book.device)
        steps = torch.arange(n, device=book.device)
        return Places(book.next_at.unsqueeze(1) + steps, None)  # (B, T)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' entries."""
        return sum(layer.nbytes for layer in self.layers)

    def rollback(self, lengths: int | Tensor) -> None:
        """Forget every token at a position >= lengths, one number for all rows or (B,) int64.

        Raises RequestError beyond the present length, or where a ring no longer holds what the window would need.
        """
        now = self.lengths
        keep = torch.as_tensor(lengths, device=now.device, dtype=torch.int64).expand(self.batch)
        if bool((keep > now).any()) or bool((keep < 0).any()):
            raise RequestError(f"cannot roll back to {keep.tolist()} tokens: the cache holds {now.tolist()}")
        for book in self.books:
            book.check_rollback(keep)
        for book in self.books:
            book.rollback(keep)

    def reorder(self, rows: Tensor) -> None:
        """Row b becomes the old row rows[b] in every layer, keys and places alike (beam search, rows that are done)."""
        rows = rows.to(self.books[0].device)
        for book in self.books:
            book.pick(rows)
        for layer in self.layers:
            layer.pick(rows)
        self.batch = rows.numel()
