"""`onehop train A.toml B.toml` and `onehop train RECIPE --sweep key=value,value`: recipes compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from onehop.base.errors import ConfigError
from onehop.base.shipped import shipped_names
from onehop.cli.common import machines, people, repeat_on_a_gpu, table
from onehop.config.read import ModelOf
from onehop.config.sweep import Entry, from_files, from_sweep

Sweep = Annotated[
    list[str] | None,
    typer.Option(help='compare values of a key: train.lr=1e-3,3e-3; "a=1,2 b=3,4" varies two together'),
]
Seeds = Annotated[int | None, typer.Option(help="runs of each compared recipe (left out: 3, of swept values 1)")]
EqualTo = Annotated[
    str | None, typer.Option(help="what compared recipes spend alike, in steps of their own: tokens, flops or time")
]
FILES = (".toml", ".json")


@dataclass(frozen=True)
class Asking:
    """What is to be compared: recipes, or one recipe over values; under the same overrides."""

    recipes: Sequence[str]
    sweeps: Sequence[str]
    keys: Sequence[str]
    out: str | None
    seeds: int
    equal: str

    @classmethod
    def of(
        cls, words: Sequence[str], *, sweeps: Sequence[str], seeds: int | None, equal: str | None
    ) -> "Asking | None":
        """What the words ask for, the first of which is a recipe; None for a single run."""
        recipe, *words = words
        others = [word for word in words if _is_recipe(word)]
        if not others and not sweeps and seeds is None:
            if equal is not None:
                raise ConfigError(f"--equal {equal} says how to compare: name a second recipe, or --sweep a key.")
            return None
        if others and sweeps:
            raise ConfigError(f"--sweep varies one recipe: leave out {' '.join(others)}, or the sweep.")
        keys = [word for word in words if word not in others and not word.startswith("out=")]
        out = next((word.removeprefix("out=") for word in reversed(words) if word.startswith("out=")), None)
        n = seeds if seeds is not None else 1 if sweeps else 3
        return cls([recipe, *others], sweeps, keys, out, n, equal or "tokens")

    def refuse(self, given: Mapping[str, bool]) -> None:
        """Refuse options that belong to a single run."""
        for flag in (flag for flag, is_given in given.items() if is_given):
            instead = "set out=OTHER, or delete the folder" if flag == "--fresh" else "leave it out"
            raise ConfigError(f"{flag} is for a single run, and this is a comparison: {instead}.")

    @property
    def folder(self) -> Path:
        """Where the comparison goes."""
        names = [Path(name).stem for name in self.recipes]
        return Path(self.out or f"out/{'-vs-'.join(names)}{'-sweep' if self.sweeps else ''}")

    def entries(self, model_of: ModelOf) -> list[Entry]:
        """The recipes, resolved."""
        if self.sweeps:
            return from_sweep(self.recipes[0], self.sweeps, self.keys, model_of=model_of)
        return from_files(self.recipes, self.keys, model_of=model_of)


def _is_recipe(word: str) -> bool:
    return "=" not in word and (word.endswith(FILES) or word in shipped_names("runs"))


def run_comparison(asking: Asking, *, resume: bool, json: bool, model_of: ModelOf) -> int:
    """Train all, and tell how they differ -> the exit code, as that of a single run."""
    entries = asking.entries(model_of)
    from onehop.training.compare import compare  # torch loads only when there is something to train
    from onehop.training.compare_table import COLUMNS

    if any(entry.recipe.train.deterministic for entry in entries):
        repeat_on_a_gpu()
    console = people(json)
    how: dict[str, Any] = {"seeds": asking.seeds, "equal": asking.equal, "resume": resume}
    found = compare(entries, out=asking.folder, console=console, **how)
    if json:
        machines({"out": str(found.out), "interrupted": found.stopped_by is not None, **found.as_dict()})
    elif found.results:
        console.print(f"\nvalidation loss in {found.terms.unit}, differences from {entries[0].name}:")
        console.print(table(*COLUMNS, rows=[line.cells() for line in found.lines()]))
        console.print(f"kept in {found.out}: comparison.md, comparison.png, comparison.json", markup=False)
    return 0 if found.stopped_by is None else 128 + found.stopped_by
