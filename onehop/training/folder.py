"""The folder of a run: never over an earlier result or somebody's own files, and nothing left of what was refused."""

import json
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onehop.base.errors import CheckpointError, ConfigError, OnehopError
from onehop.base.files import broken_link, real
from onehop.config.recipe import Recipe
from onehop.config.write import to_toml
from onehop.formats.folder import CONFIG
from onehop.formats.safetensors_header import SINGLE
from onehop.training.checkpoints import FOLDER, Checkpoints
from onehop.training.ema import FOLDER as EMA
from onehop.training.events import FOLDER as EVENTS
from onehop.training.saving import ADAPTER
from onehop.weights.adapter import FILES as ADAPTER_FILES
from onehop.weights.native import PROVENANCE
from onehop.weights.place import STALE, TOKENIZER

RECIPE = "recipe.toml"
SKIPPED = "skipped.jsonl"
PICTURES = ("loss.png", "it.png", "dates_attention.png")
ADAPTERS = tuple(f"{ADAPTER}/{name}" for name in ADAPTER_FILES)
RESULTS = ("metrics.jsonl", "samples.txt", "report.html", *PICTURES, SKIPPED, SINGLE, *ADAPTERS, PROVENANCE)
REPLACED = (CONFIG, *STALE, *TOKENIZER, *RESULTS)  # patterns: what a run writes beside its recipe and its folders


def check_out(recipe: Recipe, *, resume: bool, fresh: bool) -> None:
    """Never run over an earlier result by accident, nor over what no run has left there."""
    out = Path(recipe.out)
    if resume and fresh:
        raise ConfigError("--resume goes on with a run and --fresh replaces it: give one of them.")
    if (link := broken_link(out)) is not None:
        raise ConfigError(f"out={out}: {link} is a link that leads nowhere. Mend it, or set out=OTHER.")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out} is a file, and a run needs a folder. Set out=OTHER.")
    if recipe.tune.init is not None and real(Path(recipe.tune.init)).is_relative_to(real(out)):
        raise ConfigError(
            f"tune.init={recipe.tune.init} lies in out={out}, and the run would replace what it goes on from. "
            "Set out=OTHER."
        )
    _check_texts(recipe)
    checkpoints = Checkpoints(out, keep=1).newest_first()
    begun = checkpoints or (_has_recipe(out) and any((out / name).exists() for name in RESULTS))
    if resume and not checkpoints:
        way = "It ended before its first checkpoint: start over with --fresh." if begun else "Start without --resume."
        raise CheckpointError(f"{out} holds nothing to resume: {FOLDER} is missing. {way}")
    if not resume and not fresh and begun:
        raise ConfigError(
            f"{out} holds a run already: go on with --resume, replace it with --fresh, or set out=OTHER "
            "(in Python: resume=True, fresh=True)."
        )
    if not begun and (name := _of_somebody(out)) is not None:
        raise ConfigError(
            f"out={out} holds no run, but {name}, which this one would replace. Set out=OTHER, or move that file."
        )


def _check_texts(recipe: Recipe) -> None:
    """A text where the run writes would have the run's own files in it, the next time that it is read."""
    out = real(Path(recipe.out))
    for given in (*recipe.data.files, *(file for source in recipe.data.mixture for file in source.files)):
        place = real(Path(given).expanduser())
        if place.is_dir() and (place == out or place.is_relative_to(out / "data")):
            raise ConfigError(
                f"data.files={given} is where the run writes, with out={recipe.out}: its files would be taken for "
                "text. Set out=OTHER."
            )


def _of_somebody(out: Path) -> str | None:
    """A file that a run would replace, in a folder without one: of another model, or a recipe by hand."""
    found = [file.relative_to(out) for pattern in REPLACED for file in sorted(out.glob(pattern))]
    name = next(iter(found), None) or (RECIPE if (out / RECIPE).exists() and not _has_recipe(out) else None)
    return None if name is None else str(name)


def clear(out: Path, checkpoints: Checkpoints) -> None:
    """Remove a run's results, its checkpoints last: one that is half removed is still known for a run."""
    shutil.rmtree(out / EMA, ignore_errors=True)
    for file in (*(out / EVENTS).glob("events.out.tfevents.*"), *(file for p in REPLACED for file in out.glob(p))):
        file.unlink(missing_ok=True)  # two patterns may name one file
    with suppress(OSError):  # another's files stay, and so does their folder
        (out / ADAPTER).rmdir()
    checkpoints.remove()


def _has_recipe(out: Path) -> bool:
    """Whether a recipe is there, byte for byte as a run writes it: no comment of anybody's, no order of their own."""
    file = out / RECIPE
    try:
        text = file.read_text(encoding="utf-8")
        return to_toml(Recipe.model_validate(tomllib.loads(text))) == text
    except (OSError, ValueError, OnehopError):
        return False


def step_of(folder: Path) -> int | None:
    """The step whose model lies in a folder that a run has written; None where there is none."""
    try:
        step: int = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step


@contextmanager
def nothing_left(out: Path) -> Iterator[None]:
    """Remove the folder again if it is new and its block fails, and those above it that are new and hold nothing."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(out, ignore_errors=True)
        for folder in new[1:]:
            with suppress(OSError):  # another run may have begun beside this one
                folder.rmdir()
        raise
