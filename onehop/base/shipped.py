"""Recipes and models that come with onehop, found from a source checkout and from an installed wheel alike.

At the root of a checkout they lie in `runs/` and `models/`; a wheel carries them inside the package.
"""

from pathlib import Path
from typing import Literal

from onehop.base.errors import did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]

Kind = Literal["runs", "models"]


def shipped(kind: Kind, name: str) -> Path | None:
    """The recipe file or model folder called `name` (`quickstart`), or None if no such thing ships with onehop."""
    return _things(kind).get(name)


def shipped_names(kind: Kind) -> list[str]:
    """The names that `shipped` knows, sorted."""
    return sorted(_things(kind))


def _things(kind: Kind) -> dict[str, Path]:
    folder = _folder(kind)
    if folder is None:
        return {}
    if kind == "runs":
        return {file.stem: file for file in folder.glob("*.toml")}
    return {weights.parent.name: weights.parent for weights in folder.glob("*/*.safetensors")}


def _folder(kind: Kind) -> Path | None:
    """The package's own folder, else the checkout's: `pyproject.toml` beside it tells it from a stranger's `runs/`."""
    if kind not in ("runs", "models"):
        raise ValueError(f"kind {kind!r} does not exist. {did_you_mean(kind, ('runs', 'models'))}")
    for root in (_PACKAGE, _PACKAGE.parent):
        if (root / kind).is_dir() and (root == _PACKAGE or (root / "pyproject.toml").is_file()):
            return root / kind
    return None
