"""The letters that name tensor axes everywhere, and a check of shapes at public borders."""

from torch import Tensor

from onehop.base.errors import OnehopError

AXES = {
    "B": "batch",
    "T": "new tokens",
    "S": "visible keys",
    "H": "query heads",
    "K": "key/value heads",
    "D": "head width",
    "C": "model width",
    "F": "ffn width",
    "E": "experts",
    "V": "vocabulary",
    "L": "layers",
}


class ShapeError(OnehopError):
    """A tensor handed to a public function has the wrong shape."""


def check_shape(what: str, x: Tensor, axes: str, **known: int) -> dict[str, int]:
    """Compare x with axes like "B T H D" -> the size of each letter, `known` ones included.

    Give the answer on to the next tensor: `sizes = check_shape("q", q, "B T H D")`, then
    `check_shape("k", k, "B S K D", **sizes)`. Raises ShapeError where the number of axes or a known size differs.
    """
    letters = axes.split()
    sizes = dict(known)
    fits = x.dim() == len(letters) and all(sizes.setdefault(name, n) == n for name, n in zip(letters, x.shape))
    if not fits:
        legend = ", ".join(f"{name} {AXES.get(name, name)}" + _size(known, name) for name in letters)
        raise ShapeError(f"{what} has shape {tuple(x.shape)}, but needs ({', '.join(letters)}): {legend}")
    return sizes


def _size(known: dict[str, int], name: str) -> str:
    return f" = {known[name]}" if name in known else ""
