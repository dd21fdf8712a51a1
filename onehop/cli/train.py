"""onehop train RECIPE [key=value …]"""

from pathlib import Path
from typing import Annotated, Any

import typer

from onehop.base.errors import ConfigError, OnehopError, did_you_mean
from onehop.base.files import atomic_write
from onehop.base.shipped import shipped, shipped_names
from onehop.cli import compare as c
from onehop.cli.common import Json, machines, new_app, people, repeat_on_a_gpu, table
from onehop.config.model import ModelConfig
from onehop.config.read import Loaded, read
from onehop.config.recipe import Recipe

app = new_app()


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a .toml file, or a shipped recipe's name (onehop list recipes)")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="key=value, for example train.steps=100 data.files=my.txt; or more recipes to compare"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where the run in `out` stopped")] = False,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes", help="with --resume: go on though the recipe or the machine changed what is computed"
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="replace the run in `out`")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="print each value and where it comes from; train nothing")
    ] = False,
    copy: Annotated[Path | None, typer.Option(help="write an editable copy of the recipe here; train nothing")] = None,
    sweep: c.Sweep = None,
    seeds: c.Seeds = None,
    equal: c.EqualTo = None,
    json: Json = False,
) -> int:
    """Train a model from text by a recipe, or compare recipes. Ctrl-C and SIGTERM save; --resume goes on."""
    modes = {"--resume": resume, "--fresh": fresh, "--explain": explain, "--copy": copy is not None}
    asked = [name for name, is_asked in modes.items() if is_asked]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} exclude each other: give one of them")
    if copy is not None:
        return _copy(recipe, copy, keys or [], json=json)
    if allow_changes and not resume:
        raise ConfigError("--allow-changes says how to --resume: give both")
    asking = c.Asking.of([recipe, *(keys or [])], sweeps=sweep or [], seeds=seeds, equal=equal)
    if asking is not None:
        asking.refuse({"--fresh": fresh, "--explain": explain, "--allow-changes": allow_changes})
        return c.run_comparison(asking, resume=resume, json=json, model_of=_model_of)
    loaded = read(recipe, keys or [], model_of=_model_of)
    if explain:
        return _explain(loaded, json)
    return _run(loaded, json, resume=resume, fresh=fresh, allow_changes=allow_changes)


def _run(loaded: Loaded, json: bool, **how: Any) -> int:
    """Train, and tell how it went -> the exit code: as a shell tells signals, 130 after Ctrl-C, 143 after SIGTERM."""
    from onehop.training import train as run_training  # torch loads only when there is something to train

    if loaded.recipe.train.deterministic:
        repeat_on_a_gpu()
    console = people(json)
    run = run_training(loaded.recipe, console=console, **how)
    if json:
        machines(_numbers(run))
    elif not run.interrupted:
        _next(run.out, run.trainer.recipe, [*run.understanding], console.print, tokenizer=run.trainer.tokenizer)
    return 0 if run.stopped_by is None else 128 + run.stopped_by


def _numbers(run: Any) -> dict[str, Any]:
    """A run as --json prints it."""
    return {
        "out": str(run.out),
        "step": run.step,
        "val_loss": run.val_loss,
        "best_possible": run.best_possible,
        "understanding": {kind: u.accuracy for kind, u in run.understanding.items()},
        "data": run.trainer.data_report,
        "interrupted": run.interrupted,
        "seconds": round(run.seconds, 1),
    }


def _model_of(path: str) -> ModelConfig:
    from onehop.weights.open import config_of  # torch loads only for a recipe that goes on from a model

    return config_of(path)


def _explain(loaded: Loaded, json: bool) -> int:
    rows = loaded.explain()
    if json:
        machines({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        people(json).print(table("key", "value", "from", rows=rows))
    return 0


def _copy(recipe: str, target: Path, keys: list[str], *, json: bool) -> int:
    """Write an editable copy of a recipe."""
    source = shipped("runs", recipe) or Path(recipe)
    if keys:
        raise ConfigError(f"--copy writes the recipe as it is: put {keys[0]} into {target} afterwards")
    if not source.is_file():
        raise ConfigError(f"there is no recipe {recipe!r}. {did_you_mean(recipe, shipped_names('runs'))}")
    if target.exists():
        raise ConfigError(f"{target} exists already. Choose another name.")
    atomic_write(target, source.read_text())
    if json:
        machines({"copy": str(target)})
    people(json).print(f"wrote {target}; edit it, then: onehop train {target}", markup=False, soft_wrap=True)
    return 0


def _next(out: Path, recipe: Recipe, asked: list[str], say: Any, *, tokenizer: Any) -> None:
    """What a run left, and commands that go on from there."""
    pictures = {"it": "it.png (where “it” looks)", "pairs": "dates_attention.png (where an answer looks)"}
    more = "".join(f", {told}" for kind, told in pictures.items() if kind in asked)
    left = [name for name in ("report.html", "loss.png", "samples.txt", "metrics.jsonl") if (out / name).exists()]
    say(f"\nthe run is in {out}: {', '.join(left)}{more}")
    say("next:")
    if recipe.task.kind == "chat":
        say(f"  onehop chat {out}")
    elif recipe.task.kind in ("next", "pairs"):
        prompt = "the fifth of March nineteen ninety-nine" if "pairs" in asked else _opening(tokenizer)
        say(f'  onehop generate {out} "{prompt}"')
    say(f"  onehop verify {out}")
    if recipe.data.corpus is not None:  # not after a text of one's own, whose run may well be out/mine
        say("  onehop train quickstart data.files=FOLDER out=out/mine     (your own text)")


def _opening(tokenizer: Any) -> str:
    """A prompt of what the tokenizer knows: one of characters knows those of its text alone."""
    letters = (c for c in tokenizer.decode(list(range(tokenizer.vocab_size))) if c.isalpha())
    known = (_known(tokenizer, prompt) for prompt in ("Once upon a time", *letters))
    return next((prompt for prompt in known if prompt), "")


def _known(tokenizer: Any, text: str) -> str:
    """The text, if the tokenizer knows all of it, or else nothing."""
    try:
        tokenizer.encode(text)
    except OnehopError:
        return ""
    return text
