"""The files that a recipe is laid from: itself, and below it the chain of its bases."""

import glob
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onehop.base.errors import ConfigError, did_you_mean, nearest
from onehop.base.files import broken_link
from onehop.base.shipped import shipped, shipped_names
from onehop.config.keys import NAME
from onehop.config.raw import Raw

# Keys that hold paths, and the words there that are none.
PATHS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("data", "files"): (),
    ("data", "mixture", NAME, "files"): (),
    ("data", "tokenizer"): ("bpe", "characters"),
    ("model", "parts"): (),
    ("task", "template"): (),
    ("tune", "init"): (),
}


@dataclass(frozen=True)
class Layer:
    """One source of values and its name in --explain."""

    table: Raw
    origin: str


def file_layers(source: str | Path, root: str | Path | None = None) -> list[Layer]:
    """The recipe `source` and its bases, lowest first. Raises ConfigError for a missing or broken file and a cycle."""
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"{source!r} is no recipe. Give a .toml or .json file, the name of one that ships, or onehop.Recipe(…)."
        )
    layers: list[Layer] = []
    seen: list[Path] = []
    here: Path | None = None
    name: str | Path | None = source
    while name is not None:
        file, origin = _find(name, here)
        if file.resolve() in seen:
            raise ConfigError(
                f"{origin}: base={str(name)!r} leads back to a recipe that builds on it. Break the circle."
            )
        seen.append(file.resolve())
        table = read_table(file)
        here = file.parent
        name = table.pop("base", None)
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"{origin}: base={name!r} must be the path of another recipe")
        layers.insert(0, Layer(relocate(table, here, root), origin))
    return layers


def read_table(file: Path) -> Raw:
    """A .toml or .json file as a table. Raises ConfigError with the place of a fault."""
    if file.suffix not in (".toml", ".json"):
        raise ConfigError(f"{file} is not a recipe: its name must end in .toml or .json")
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file} is not valid {file.suffix[1:].upper()}: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ConfigError(f"{file} is nested too deeply for a recipe") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{file} holds a {type(table).__name__}, not a table of keys")
    return table


def relocate(table: Raw, folder: Path | None, root: str | Path | None) -> Raw:
    """The table with its relative paths made to start from where they are: the file's `folder`, else `root`."""
    for (top, *path), words in PATHS.items():
        if isinstance(table.get(top), dict):
            place = partial(_place, words=words, folder=folder, root=root)
            table = {**table, top: _at(table[top], path, place)}
    return table


def _at(value: Any, path: list[str], change: Callable[[Any], Any]) -> Any:
    """`value` with what stands at a path in it changed: each item of a list, each table where the path says NAME."""
    if isinstance(value, list | tuple):
        inner = path[1:] if path[:1] == [NAME] else path
        return [_at(item, inner, change) for item in value]
    if not path:
        return change(value)
    if not isinstance(value, dict):
        return value
    return {k: _at(v, path[1:], change) if path[0] in (k, NAME) else v for k, v in value.items()}


def _place(value: Any, words: tuple[str, ...], *, folder: Path | None, root: str | Path | None) -> Any:
    if not isinstance(value, str) or not value or value in words or Path(value).is_absolute():
        return value
    if folder is not None and _is_there(folder, value):
        return str(folder / value)
    return value if root is None else str(Path(root) / value)


def _is_there(folder: Path, value: str) -> bool:
    return (folder / value).exists() or bool(glob.glob(str(Path(glob.escape(str(folder))) / value), recursive=True))


def _find(name: str | Path, here: Path | None) -> tuple[Path, str]:
    """A recipe's file by path (from `here`, the folder of the recipe that names it), else the shipped one."""
    path = Path(name) if here is None else here / name
    if path.is_file():
        return path, str(path)
    found = shipped("runs", str(name))
    if found is not None:
        return found, f"runs/{found.name}"
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the recipe in it (a .toml or .json file)")
    if (link := broken_link(path)) is not None:
        raise ConfigError(f"{path}: {link} is a link that leads nowhere. Give the path of a .toml or .json file.")
    if path.exists():
        raise ConfigError(f"{path} is neither a file nor a folder. Give the path of a .toml or .json file.")
    known = shipped_names("runs")
    help_ = did_you_mean(path.stem, known) if nearest(path.stem, known) else f"Recipes that ship: {', '.join(known)}."
    raise ConfigError(
        f"{path} does not exist." + (f" {help_}" if known else " Give the path of a .toml or .json file.")
    )
