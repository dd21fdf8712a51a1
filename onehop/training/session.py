"""A whole run: the loop around the steps, with evaluations, samples, pictures, saves and a verdict at its end."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from onehop.base.units import human_count, human_time
from onehop.data.corpora import CORPORA, Corpus
from onehop.model.transformer import Transformer
from onehop.training.picture import draw_look, look_from
from onehop.training.report import Display, draw_losses
from onehop.training.samples import drop_samples, sample, write_sample
from onehop.training.step import StepResult
from onehop.training.tracked import line
from onehop.training.trainer import Trainer
from onehop.training.understanding import Understanding, ask

QUESTIONS = 300  # asked of each kind: a share of 0.9 is then known to within 0.035 (two standard errors)
QUESTION_SEED = 10_000  # added to the text's seed


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
        """The model as it was saved."""
        return self.trainer.model


class Session:
    """One call of `train`."""

    def __init__(self, trainer: Trainer, display: Display):
        self.trainer, self.display, self.cfg = trainer, display, trainer.recipe.train
        self.corpus: Corpus | None = CORPORA.get(trainer.recipe.data.corpus) if trainer.recipe.data.corpus else None
        self.best_possible = best_possible(trainer, self.corpus)
        self.val_loss: float | None = None
        self._clock, self._targets, self._rate = time.perf_counter(), 0, 0.0

    def run(self) -> Run:
        """Train to the end, or until Ctrl-C, and save."""
        t, began = self.trainer, time.perf_counter()
        self._introduce()
        drop_samples(t.out / "samples.txt", after=t.progress.step)
        self.display.phase("training", total=self.cfg.steps, done=t.progress.step)
        with _until_interrupted(self.display) as stop:
            self._clock = time.perf_counter()
            for result in t.steps():
                self._after_step(result)
                if stop.asked:
                    break
            if self.val_loss is None and not stop.asked:  # no step was left to take
                self.val_loss = t.evaluate()
            t.save()
        understanding = {} if stop.asked else self._examine()
        seconds = time.perf_counter() - began
        self._conclude(understanding, stop.asked, seconds)
        return Run(t.out, t, t.progress.step, self.val_loss, self.best_possible, understanding, stop.asked, seconds)

    def _after_step(self, result: StepResult) -> None:
        """Write down, evaluate and save, as far as it is time to."""
        t, cfg = self.trainer, self.cfg
        self._targets += result.targets
        last = result.step == cfg.steps
        evaluate = last or result.step % cfg.eval_every == 0
        if result.skipped:
            self.display.say(f"step {result.step}: the gradient was not finite; the step is skipped")
        if evaluate or result.step == 1 or result.step % cfg.log_every == 0:
            self._rate = self._targets / max(time.perf_counter() - self._clock, 1e-9)
            row = self._row(result)
            if evaluate:
                self.val_loss = row["val_loss"] = t.evaluate()
            t.metrics.write(row)
            if evaluate:
                self._show(result, row["val_loss"])
            self._clock, self._targets = time.perf_counter(), 0
        if result.step % (cfg.save_every or cfg.eval_every) == 0 and not last:
            t.save()
            self._clock, self._targets = time.perf_counter(), 0
        note = f"step {result.step} of {cfg.steps}  loss {result.loss:.3f}  {human_count(self._rate)} tokens/s"
        self.display.note(note, done=result.step)

    def _row(self, result: StepResult) -> dict[str, Any]:
        """A line of metrics.jsonl; what JSON has no number for becomes null."""
        row = {"step": result.step, "tokens": self.trainer.progress.tokens, "loss": result.loss, "lr": result.lr}
        return {k: v if np.isfinite(v) else None for k, v in row.items()} | {"tokens_per_s": round(self._rate, 1)}

    def _introduce(self) -> None:
        t, say = self.trainer, self.display.say
        n = sum(p.numel() for p in t.model.parameters())
        left_out = f" ({t.data.n_skipped} hidden or binary files left out)" if t.data.n_skipped else ""
        say(f"text: {t.data.description}{left_out}; {t.loader.summary()}")
        say(
            f"model: {human_count(n)} parameters, {t.recipe.model.n_layers} layers of width {t.recipe.model.d_model}, "
            f"{t.tokenizer.vocab_size} token ids; on {t.device.type} in {str(t.precision).removeprefix('torch.')}"
        )
        if any(block.attention.sees == "prefix" for block in t.recipe.model.layers()):
            say("attention.sees=prefix: plain text has no prefixes, so this run trains as if it said causal")
        if self.best_possible is not None and (n_cut := validation_cuts(t)):
            say(
                f"{n_cut} of {t.data.validation.n_documents} validation documents are cut by rows of {t.context} "
                "tokens: without their beginnings the best possible loss is out of reach"
            )
        if t.progress.step >= self.cfg.steps > 0:
            say(f"the run is at step {t.progress.step} of train.steps={self.cfg.steps}: raise train.steps to go on")

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
        self.display.say(f"step {result.step}: validation loss {val_loss:.3f}{best}{_busiest(result.loads)}")
        if self.cfg.sample_tokens:
            text = sample(t.model, t.tokenizer, self.cfg.sample, n_tokens=self.cfg.sample_tokens, seed=result.step)
            write_sample(t.out / "samples.txt", text, step=result.step, val_loss=val_loss)
            self.display.say(text, style="dim")

    def _examine(self) -> dict[str, Understanding]:
        """Ask the corpus's questions about combinations that were held out of training, and draw a look at 'it'."""
        t, found = self.trainer, {}
        if self.corpus is not None and self.corpus.questions is not None:
            self.display.phase("asking questions")
            for kind in ("it", "where"):
                questions = self.corpus.questions(QUESTION_SEED + t.recipe.data.seed, QUESTIONS, kind=kind)
                found[kind] = ask(t.model, t.tokenizer, questions, precision=t.precision, notify=self.display.note)
                look = look_from(t.model, t.tokenizer, questions[0].prompt, word="it") if kind == "it" else None
                if look is not None:
                    draw_look(*look, t.out / "it.png", word="it")
        numbers = {"val_loss": self.val_loss, "best_possible": self.best_possible}
        t.add_to_report(understanding={kind: u.accuracy for kind, u in found.items()}, **numbers)
        return found

    def _conclude(self, understanding: dict[str, Understanding], interrupted: bool, seconds: float) -> None:
        t, say = self.trainer, self.display.say
        if interrupted:
            say(f"stopped at step {t.progress.step} of {self.cfg.steps} and saved; go on with --resume")
            return
        over = "" if self.best_possible is None or self.val_loss is None else (
            f", {self.val_loss / self.best_possible - 1:.1%} above the best possible {self.best_possible:.3f}"
        )  # fmt: skip
        say(f"trained {t.progress.step} steps in {human_time(seconds)}: validation loss {self.val_loss:.3f}{over}")
        if (planned := self._planned()) is not None:
            say(planned)
        for kind, u in understanding.items():
            say(f"held-out “{kind}” questions: {u.accuracy:.1%} right of {u.asked} (guessing: {u.chance:.0%})")

    def _planned(self) -> str | None:
        """What the run was planned to take, beside what it took; nothing before a step was taken."""
        t, p = self.trainer, self.trainer.progress
        if not p.seconds or not p.tokens:
            return None
        return line(t.recipe, t.tracked, precision=t.precision, tokens_per_s=p.tokens / p.seconds)


def best_possible(trainer: Trainer, corpus: Corpus | None) -> float | None:
    """The entropy of the corpus in nats per target of the validation text, or None where it is not known.

    Every document ends with an end token, whose surprise the entropy includes; a tokenizer without one (characters)
    leaves the number unknown. Rows that cut documents read worse.
    """
    tokenizer, held = trainer.tokenizer, trainer.data.validation
    if corpus is None or corpus.entropy is None or (tokenizer.bos_id is None and not tokenizer.eos_ids):
        return None
    return corpus.entropy() * held.n_documents / held.n_targets


def validation_cuts(trainer: Trainer) -> int:
    """How many validation documents do not stand in a row as a whole."""
    starts, context = trainer.data.validation.starts, trainer.context
    if trainer.recipe.data.packing == "whole":
        return int((np.diff(starts) > context).sum())
    return int((starts[:-1] // context != (starts[1:] - 1) // context).sum())


def _busiest(loads: Sequence[Tensor | None]) -> str:
    """How unevenly the tokens of a step were spread over the experts, in words; nothing without experts."""
    shares = [float(load.max() / load.float().mean().clamp(min=1e-9)) for load in loads if load is not None]
    return f"; the busiest expert takes {max(shares):.1f} times its share" if shares else ""


class _Stop:
    """Whether Ctrl-C was pressed; a second time interrupts at once."""

    def __init__(self, display: Display) -> None:
        self.display, self.asked = display, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.display.note("stopping after this step; Ctrl-C again stops at once, without saving")


@contextmanager
def _until_interrupted(display: Display) -> Iterator[_Stop]:
    """Turn Ctrl-C into a wish that the loop looks at between steps (only the main thread can)."""
    stop = _Stop(display)
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
