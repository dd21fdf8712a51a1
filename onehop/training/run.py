"""The doors to training: `train` is a whole run, `steps` a loop of your own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from onehop.base.interrupt import ended_cleanly
from onehop.config.overrides import Overrides
from onehop.config.read import read
from onehop.config.recipe import Recipe
from onehop.model.transformer import Transformer
from onehop.training.report import Display
from onehop.training.session import Run, Session
from onehop.training.step import StepResult
from onehop.training.trainer import Trainer
from onehop.weights.open import config_of


@dataclass(frozen=True, eq=False)
class LiveStep:
    """One step of a loop of your own: its numbers, and the run, whose model may be changed between steps."""

    result: StepResult
    trainer: Trainer

    @property
    def step(self) -> int:
        """The number of the step, from 1."""
        return self.result.step

    @property
    def loss(self) -> float:
        """Mean surprise per target of this step's batch, in nats."""
        return self.result.loss

    @property
    def model(self) -> Transformer:
        """The model after this step."""
        return self.trainer.model


def steps(
    source: str | Path | Recipe,
    overrides: Overrides = (),
    *,
    resume: bool = False,
    fresh: bool = False,
    allow_changes: bool = False,
) -> Iterator[LiveStep]:
    """Train step by step: `for step in onehop.steps("tiny"): print(step.loss)`.

    Saves and evaluates nothing by itself: call `step.trainer.save()` and `step.trainer.evaluate()`.
    """
    how: dict[str, Any] = {"resume": resume, "fresh": fresh, "allow_changes": allow_changes}
    with ExitStack() as until:
        trainer = Trainer(_recipe(source, overrides), until=until, **how)
        for result in trainer.steps():
            yield LiveStep(result, trainer)


def train(
    source: str | Path | Recipe,
    overrides: Overrides = (),
    *,
    resume: bool = False,
    fresh: bool = False,
    allow_changes: bool = False,
    console: Console | None = None,
) -> Run:
    """Train by a recipe (a file, a shipped name, or a Recipe) to its end, and save; what `onehop train` does.

    resume: go on where the run in `out` stopped, bit for bit; allow_changes: also where the recipe or the machine has
    changed so that its numbers will differ. fresh: replace it. Ctrl-C and SIGTERM end the run after the step and save
    it; before the first step they leave nothing behind. Shows its progress on `console` (left out: nowhere).
    """
    recipe = _recipe(source, overrides)
    how: dict[str, Any] = {"resume": resume, "fresh": fresh, "allow_changes": allow_changes}
    with Display(console if console is not None else Console(quiet=True)) as display, ExitStack() as until:
        display.phase("reading the text")
        with ended_cleanly():
            trainer = Trainer(recipe, notify=display.note, until=until, **how)
        return Session(trainer, display).run()


def _recipe(source: str | Path | Recipe, overrides: Overrides) -> Recipe:
    if isinstance(source, Recipe):
        return source
    return read(source, overrides, model_of=config_of).recipe
