"""Which recipes are compared: several files, or one recipe over values of its keys."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onehop.base.errors import ConfigError, OnehopError
from onehop.config.read import ModelOf, read
from onehop.config.recipe import Recipe

REFUSED = {
    "out": "each run has a folder of its own below that of the comparison. Leave it out.",
    "train.seed": "the seeds of a comparison are counted by --seeds. Use --seeds N.",
}


@dataclass(frozen=True)
class Entry:
    """A recipe that is compared. `share`: entries with the same one are given the same budget."""

    name: str
    recipe: Recipe
    share: str = ""


def from_files(
    sources: Sequence[str], overrides: Sequence[str] = (), *, model_of: ModelOf | None = None
) -> list[Entry]:
    """One entry for each recipe, by the name of its file, all under the same overrides."""
    names: list[str] = []
    for source in sources:
        stem = Path(source).stem
        taken = sum(name == stem or name.startswith(f"{stem}~") for name in names)
        names.append(stem if not taken else f"{stem}~{taken + 1}")
    return [
        Entry(name, read(source, overrides, model_of=model_of).recipe)
        for name, source in zip(names, sources, strict=True)
    ]


def from_sweep(
    source: str, sweeps: Sequence[str], overrides: Sequence[str] = (), *, model_of: ModelOf | None = None
) -> list[Entry]:
    """One entry for each combination of values.

    'train.lr=1e-3,3e-3' varies one key; keys in one sweep, separated by spaces, vary together:
    'model.d_model=64,128 model.ffn.d_ff=172,344'. Swept numbers of steps are budgets: with each, entries of its own
    are made equal.
    """
    axes = [_axis(text) for text in sweeps]
    keys = [word.partition("=")[0] for axis in axes for word in axis[0]]
    if (twice := next((key for key in keys if keys.count(key) > 1), None)) is not None:
        raise ConfigError(f"--sweep gives {twice} twice. Name all its values in one sweep.")
    found = []
    for chosen in itertools.product(*axes):
        words = [word for group in chosen for word in group]
        name = ",".join(words)
        try:
            recipe = read(source, [*overrides, *words], model_of=model_of).recipe
        except OnehopError as error:
            raise ConfigError(f"--sweep {' '.join(words)}: {error}") from error
        share = next((word for word in words if word.startswith("train.steps=")), "")
        found.append(Entry(name, recipe, share))
    return found


def _axis(text: str) -> list[tuple[str, ...]]:
    """'a=1,2 b=3,4' -> [('a=1', 'b=3'), ('a=2', 'b=4')]."""
    columns = []
    for part in text.split():
        key, equals, values = part.partition("=")
        found = re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|[^,\[\"])+", values)  # no comma inside brackets or quotes cuts
        if not equals or not key or not found:
            raise ConfigError(f"--sweep {text!r}: write key=value,value,… for example train.lr=1e-3,3e-3")
        if key in REFUSED:
            raise ConfigError(f"--sweep {part}: {REFUSED[key]}")
        if (twice := next((value for value in found if found.count(value) > 1), None)) is not None:
            raise ConfigError(f"--sweep {part}: {key}={twice} is there twice. Leave one out.")
        columns.append([f"{key}={value}" for value in found])
    if not columns:
        raise ConfigError("--sweep is empty: write key=value,value,… for example train.lr=1e-3,3e-3")
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(f"{len(column)} of {column[0].partition('=')[0]}" for column in columns)
        raise ConfigError(f"--sweep {text!r}: keys in one sweep vary together and need as many values: {sizes}.")
    return list(zip(*columns, strict=True))
