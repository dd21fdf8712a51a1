"""What one forward pass shares between its layers: where tokens stand, who sees whom, angles, dropout, listeners."""

from copy import copy
from typing import Protocol

from torch import Tensor

from onehop.parts.dropout import DropKey
from onehop.parts.places import Places
from onehop.parts.position import PositionScheme
from onehop.parts.sight import Sees, Sight


class Listener(Protocol):
    """Hears activations by name; what it returns takes their place."""

    def wants(self, name: str) -> bool:
        """Whether this activation should be shown (some are computed only then)."""
        ...

    def hear(self, name: str, value: Tensor) -> Tensor:
        """Look at an activation, and return it or another of the same shape."""
        ...


class Step:
    """One pass of T new tokens. Everything that depends on positions alone is computed once and kept for all layers."""

    def __init__(
        self,
        places: Places,
        *,
        prefix: Tensor | None = None,
        drop: DropKey | None = None,
        kernel: str = "auto",
        listener: Listener | None = None,
    ):
        self.places, self.prefix, self.drop, self.kernel = places, prefix, drop, kernel
        self.listener = listener
        self._sights: dict[tuple[Sees, int], Sight] = {}
        self._angles: dict[tuple[object, object], tuple[Tensor, Tensor]] = {}
        self._kept: list[object] = []  # keeps what `id` stands for alive

    def copy(self) -> "Step":
        """The same step, knowing what is known by now; what it learns later stays its own."""
        twin = copy(self)
        twin._sights, twin._angles, twin._kept = dict(self._sights), dict(self._angles), list(self._kept)
        return twin

    def sight(self, sees: Sees, keys: Places) -> Sight:
        """Which of the new tokens sees which of `keys`."""
        key = sees, id(keys)
        if key not in self._sights:
            self._sights[key] = Sight(sees, self.places, keys, prefix=self.prefix)
            self._kept.append(keys)
        return self._sights[key]

    def angles(self, scheme: PositionScheme, like: Tensor) -> tuple[Tensor, Tensor]:
        """Angles of a rotary scheme at the new tokens, as cos and sin for activations like `like`."""
        key = scheme.key, like.dtype
        if key not in self._angles:
            length = text_lengths(self.places) if scheme.by_length else None  # (B,) or (B, T)
            self._angles[key] = scheme.angles(self.places.at, dtype=like.dtype, length=length)
        return self._angles[key]

    def real(self) -> Tensor | None:
        """(B, T) bool: which new tokens are not padding; None if all are real."""
        return self.places.real()

    def tap(self, name: str, value: Tensor) -> Tensor:
        """Show an activation to the listener, if there is one."""
        return value if self.listener is None else self.listener.hear(name, value)

    def wants(self, name: str) -> bool:
        """Whether someone wants to see the activation `name`."""
        return self.listener is not None and self.listener.wants(name)

    def dropping(self, *site: int) -> DropKey | None:
        """The dropout key of one site, or None outside training."""
        key = self.drop
        for part in site:
            key = None if key is None else key.at(part)
        return key


def text_lengths(places: Places) -> Tensor:
    """Tokens of each row's text (B | 1,) or, where rows hold several documents, of each slot's own document (B, T).

    A text is counted up to its last token among these; those before the first of them count, padding does not.
    """
    if not places.n:
        return places.at.new_zeros(places.at.size(0))
    if places.doc is None:
        return places.at.amax(dim=1) + 1
    documents, which = places.doc.unique(return_inverse=True)  # (N,), (B, T)
    last = places.at.new_full((which.size(0), documents.numel()), -1)  # (B, N)
    last = last.scatter_reduce(1, which, places.at.expand_as(which), "amax")
    return last.gather(1, which) + 1
