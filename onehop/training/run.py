"""`train`: a whole run with progress, evaluations, pictures and saved result. `steps`: a loop of your own."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from onehop.base.units import human_count, human_time
from onehop.config.overrides import Overrides
from onehop.config.read import read
from onehop.config.recipe import Recipe
from onehop.data.corpora import CORPORA, Corpus
from onehop.model.transformer import Transformer
from onehop.training.picture import draw_look, look_from
from onehop.training.report import draw_losses, progress_bar
from onehop.training.samples import sample
from onehop.training.step import StepResult
from onehop.training.trainer import Trainer
from onehop.training.understanding import Understanding, ask

QUESTIONS = 300  # asked of each kind: a share of 0.9 is then known to within 0.035 (two standard errors)


@dataclass(frozen=True, eq=False)
class Run:
    """What a finished (or interrupted) run leaves: its folder, model and last numbers (losses in nats per token)."""

    out: Path
    trainer: Trainer
    step: int
    val_loss: float | None
    best_possible: float | None
    understanding: dict[str, Understanding]
    interrupted: bool
    seconds: float

    @property
    def model(self) -> Transformer:
        return self.trainer.model


@dataclass(frozen=True, eq=False)
class LiveStep:
    """One step of a loop of your own: its numbers, and the run, whose model may be changed between steps."""

    result: StepResult
    trainer: Trainer

    @property
    def step(self) -> int:
        return self.result.step

    @property
    def loss(self) -> float:
        """Mean surprise per target of this step's batch, in nats."""
        return self.result.loss

    @property
    def model(self) -> Transformer:
        return self.trainer.model


def steps(
    source: str | Path | Recipe, overrides: Overrides = (), *, resume: bool = False, fresh: bool = False
) -> Iterator[LiveStep]:
    """Train step by step: `for step in onehop.steps("tiny"): print(step.loss)`.

    Saves and evaluates nothing by itself: call `step.trainer.save()` and `step.trainer.evaluate()`.
    """
    trainer = Trainer(_recipe(source, overrides), resume=resume, fresh=fresh)
    for result in trainer.steps():
        yield LiveStep(result, trainer)


def train(
    source: str | Path | Recipe,
    overrides: Overrides = (),
    *,
    resume: bool = False,
    fresh: bool = False,
    console: Console | None = None,
) -> Run:
    """Train by a recipe (a file, a shipped name, or a Recipe) to its end, and save; what `onehop train` does.

    resume: go on where the run in `out` stopped; fresh: replace it. Ctrl-C ends the run after the step and saves it.
    Shows its progress on `console` (left out: nowhere).
    """
    console = console if console is not None else Console(quiet=True)
    with console.status("reading the text") as status:
        trainer = Trainer(_recipe(source, overrides), resume=resume, fresh=fresh, notify=lambda m: status.update(m))
    return _Session(trainer, console).run()


def _recipe(source: str | Path | Recipe, overrides: Overrides) -> Recipe:
    if isinstance(source, Recipe):
        return source
    return read(source, overrides).recipe


class _Session:
    """One call of `train`: the loop around the steps."""

    def __init__(self, trainer: Trainer, console: Console):
        self.trainer, self.console, self.cfg = trainer, console, trainer.recipe.train
        self.corpus: Corpus | None = CORPORA.get(trainer.recipe.data.corpus) if trainer.recipe.data.corpus else None
        self.best_possible = best_possible(trainer, self.corpus)
        self.val_loss: float | None = None
        self._clock, self._tokens = time.perf_counter(), 0

    def run(self) -> Run:
        t, began = self.trainer, time.perf_counter()
        self._introduce()
        with _until_interrupted() as stop, progress_bar(self.console) as bar:
            task = bar.add_task("training", total=self.cfg.steps, completed=t.progress.step, note="")
            self._clock = time.perf_counter()
            for result in t.steps():
                bar.update(task, completed=result.step, note=self._after_step(result, last=stop.asked))
                if stop.asked:
                    break
        if t.progress.step == 0 or self.val_loss is None:
            self.val_loss = t.evaluate()
        understanding = {} if stop.asked else self._examine()
        t.report = {"understanding": {kind: u.accuracy for kind, u in understanding.items()}, **self._numbers()}
        t.save()
        seconds = time.perf_counter() - began
        self._conclude(understanding, stop.asked, seconds)
        return Run(t.out, t, t.progress.step, self.val_loss, self.best_possible, understanding, stop.asked, seconds)

    def _after_step(self, result: StepResult, *, last: bool) -> str:
        """Write down, evaluate and save as far as it is time to -> the note beside the progress bar."""
        t, cfg = self.trainer, self.cfg
        self._tokens += result.targets
        last = last or result.step == cfg.steps
        evaluate = last or result.step % cfg.eval_every == 0
        if not evaluate and result.step % cfg.log_every and result.step != 1:
            return self._note(result)
        rate = self._tokens / max(time.perf_counter() - self._clock, 1e-9)
        row = {"step": result.step, "tokens": t.progress.tokens, "loss": result.loss, "lr": result.lr}
        row |= {"tokens_per_s": round(rate, 1), "grad_norm": result.grad_norm}
        if any(load is not None for load in result.loads):
            row["expert_load"] = [None if load is None else load.tolist() for load in result.loads]
        if evaluate:
            self.val_loss = row["val_loss"] = t.evaluate()
        t.metrics.write(row)
        if evaluate:
            self._show(result, self.val_loss or 0.0)
        if result.step % (cfg.save_every or cfg.eval_every) == 0 and not last:
            t.save()
        self._clock, self._tokens = time.perf_counter(), 0
        self._rate = rate
        return self._note(result)

    def _note(self, result: StepResult) -> str:
        rate = getattr(self, "_rate", 0.0)
        return f"step {result.step}  loss {result.loss:.3f}  {human_count(rate)} tokens/s"

    def _introduce(self) -> None:
        t = self.trainer
        n = sum(p.numel() for p in t.model.parameters())
        self.console.print(f"text: {t.data.description}; {t.loader.summary()}")
        self.console.print(
            f"model: {human_count(n)} parameters, {t.recipe.model.n_layers} layers of width {t.recipe.model.d_model}, "
            f"{t.tokenizer.vocab_size} token ids; on {t.device.type} in {str(t.precision).removeprefix('torch.')}"
        )

    def _show(self, result: StepResult, val_loss: float) -> None:
        """After an evaluation: the curve, a line and a sample."""
        t = self.trainer
        draw_losses(
            t.metrics.rows,
            t.out / "loss.png",
            best=self.best_possible,
            best_label=f"best possible: entropy of {t.recipe.data.corpus} ({self.best_possible or 0:.3f})",
            title=f"{t.out.name}: {human_count(t.progress.tokens)} tokens",
        )
        best = "" if self.best_possible is None else f" (best possible {self.best_possible:.3f})"
        self.console.print(f"step {result.step}: validation loss {val_loss:.3f}{best}")
        if self.cfg.sample_tokens:
            text = sample(t.model, t.tokenizer, self.cfg.sample, n_tokens=self.cfg.sample_tokens, seed=result.step)
            with open(t.out / "samples.txt", "a") as file:
                file.write(f"--- step {result.step}, validation loss {val_loss:.3f}\n{text}\n")
            self.console.print(text, style="dim", markup=False, highlight=False)

    def _examine(self) -> dict[str, Understanding]:
        """Ask the corpus's questions about combinations that were held out of training, and draw a look at 'it'."""
        if self.corpus is None or self.corpus.questions is None:
            return {}
        t = self.trainer
        found = {}
        for kind in ("it", "where"):
            questions = self.corpus.questions(10_000 + t.recipe.data.seed, QUESTIONS, kind=kind)
            found[kind] = ask(t.model, t.tokenizer, questions)
            if kind == "it":
                pieces, weights = look_from(t.model, t.tokenizer, questions[0].prompt, "it")
                draw_look(pieces, weights, t.out / "it.png", word="it")
        return found

    def _numbers(self) -> dict[str, float | None]:
        return {"val_loss": self.val_loss, "best_possible": self.best_possible}

    def _conclude(self, understanding: dict[str, Understanding], interrupted: bool, seconds: float) -> None:
        t, say = self.trainer, self.console.print
        if interrupted:
            say(f"stopped at step {t.progress.step} of {self.cfg.steps} and saved; go on with --resume")
            return
        over = "" if self.best_possible is None or self.val_loss is None else (
            f", {self.val_loss / self.best_possible - 1:.1%} above the best possible {self.best_possible:.3f}"
        )  # fmt: skip
        say(f"trained {t.progress.step} steps in {human_time(seconds)}: validation loss {self.val_loss:.3f}{over}")
        for kind, u in understanding.items():
            say(f"held-out “{kind}” questions: {u.accuracy:.1%} right of {u.asked} (guessing: {u.chance:.0%})")


def best_possible(trainer: Trainer, corpus: Corpus | None) -> float | None:
    """The entropy of the corpus in nats per target of the validation text, or None where it is not known.

    Every document ends with an end token, whose surprise the entropy includes. Rows that cut documents read worse.
    """
    if corpus is None or corpus.entropy is None:
        return None
    held = trainer.data.validation
    return corpus.entropy() * held.n_documents / held.n_targets


class _Stop:
    """Whether Ctrl-C was pressed; a second time interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def _until_interrupted() -> Iterator[_Stop]:
    """Turn Ctrl-C into a wish that the loop looks at between steps (only the main thread can)."""
    stop = _Stop()
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
