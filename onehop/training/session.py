"""A whole run: the loop around the steps, with evaluations, samples, pictures, saves and a verdict at its end."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from torch import Tensor

from onehop.base.errors import Diverged
from onehop.base.units import counted, human_bytes, human_count, human_flops, human_time
from onehop.config.origins import leaves
from onehop.data.corpora import CORPORA, Corpus
from onehop.data.mixture import Mixture
from onehop.data.report import behind_cuts
from onehop.model.transformer import Transformer
from onehop.training.begin import share
from onehop.training.closing import closing_lines
from onehop.training.events import Events
from onehop.training.forecast import Forecast, forecast, told
from onehop.training.picture import draw_across, draw_look, look_across, look_from
from onehop.training.report import Display, draw_losses, fitted, sparkline
from onehop.training.run_page import RunPage, data_lines
from onehop.training.samples import drop_samples, sample, write_sample
from onehop.training.setup import memory
from onehop.training.speed import Speed, Work, measure_peak
from onehop.training.step import StepResult
from onehop.training.took import Meter, Took
from onehop.training.trainer import Trainer
from onehop.training.understanding import Understanding, ask, ask_pairs
from onehop.training.wandb_log import Wandb

Q = TypeVar("Q")  # a question of a corpus
QUESTIONS = 300  # asked of each kind: a share of 0.9 is then known to within 0.035 (two standard errors)
ANSWERS = 1000  # pairs: a share of 0.99 is then known to within 0.006
KNOWN = ("next", "pairs")  # tasks of which a corpus knows the best possible loss, or the right answers
RECENT = 12  # steps in the sparkline
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
    stopped_by: int | None  # the signal: Ctrl-C is 2, SIGTERM 15
    seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return self.stopped_by is not None

    @property
    def model(self) -> Transformer:
        """The model as it was saved."""
        return self.trainer.model


class Session:
    """One call of `train`."""

    def __init__(self, trainer: Trainer, display: Display):
        self.trainer, self.display, self.cfg = trainer, display, trainer.recipe.train
        name = trainer.recipe.data.corpus
        known = name is not None and trainer.recipe.task.kind in KNOWN
        self.corpus: Corpus | None = CORPORA.get(name) if known and name is not None else None
        self.best_possible = best_possible(trainer, self.corpus)
        self.val_loss: float | None = None
        self.logs: list[Events | Wandb] = []
        self.losses: deque[float] = deque(maxlen=RECENT)
        self.speed = Speed(None, None)
        self.took, self.meter = Took(trainer), Meter(trainer)
        self.page = RunPage(trainer, self.took, best=self.best_possible)
        self.work = Work.of(trainer.model, context=trainer.context)
        self.forecast: Forecast | None = None
        self._held = memory(trainer.device)  # asked with the rate: at each step it would cost what a small layer does

    def run(self) -> Run:
        """Train to the end, or until Ctrl-C, and save."""
        t = self.trainer
        self._introduce()
        drop_samples(t.out / "samples.txt", after=t.progress.step)
        self.display.phase("training", total=self.cfg.steps, done=t.progress.step)
        with _until_asked_to_stop(self.display) as stop, t.writer, self._other_logs():
            self._measure()
            self.meter.restart()
            with self._told_if_it_diverges():
                for result in t.steps():
                    self._after_step(result)
                    if stop.by is not None:
                        break
            if self.val_loss is None and stop.by is None:  # no step was left to take
                self.val_loss = t.evaluate()
            t.save()
        understanding = {} if stop.by is not None else self._examine()
        self._conclude(understanding, stop.by is not None)
        seconds = self.took.seconds
        return Run(t.out, t, t.progress.step, self.val_loss, self.best_possible, understanding, stop.by, seconds)

    @contextmanager
    def _told_if_it_diverges(self) -> Iterator[None]:
        """Write the line of the step that ends a run, and the page."""
        t = self.trainer
        try:
            yield
        except Diverged as error:
            if t.last is not None and (not t.metrics.rows or t.metrics.rows[-1]["step"] < t.last.step):
                self._say_alarms()
                self.meter.look()
                self._log(self._row(t.last))
            self.page.write(f"ended after step {t.progress.step} of {self.cfg.steps}: {error}")
            raise

    def _measure(self) -> None:
        """What the machine can do, told in the run's provenance."""
        t = self.trainer
        peak = None
        if self.cfg.measure_peak and self.work is not None and t.progress.step < self.cfg.steps:
            self.display.note("measuring the machine")
            peak = measure_peak(t.device, t.precision)
        if peak is not None:
            t.report["peak"] = asdict(peak)
            product = f"two matrices of {peak.width} x {peak.width} in {peak.dtype}"
            self.display.say(f"peak: {human_flops(peak.flops_per_s)}/s, measured on {product}")
        self.speed = Speed(None, peak)

    def _after_step(self, result: StepResult) -> None:
        """Write down, evaluate and save, as far as it is time to."""
        t, cfg = self.trainer, self.cfg
        self.meter.count(result.targets)
        last = result.step == cfg.steps
        evaluate = last or result.step % cfg.eval_every == 0
        self._say_alarms()
        if cfg.writes(result.step) or t.alarms.columns:
            self.meter.look()
            self._held = memory(t.device)
            self.speed = Speed(None if self.work is None else self.work.per_target(t.read), self.speed.peak)
            row = self._row(result)
            if evaluate:
                self.val_loss = row["val_loss"] = t.evaluate()
                row |= {} if (averaged := t.evaluate_average()) is None else {"ema_val_loss": averaged}
            self._log(row)
            if evaluate:
                self._show(result, row["val_loss"])
            self.meter.restart()
        due = result.step % (cfg.save_every or cfg.eval_every) == 0
        if (due or (evaluate and t.is_best)) and not last:
            t.save(background=True)
            self.meter.restart()
        if evaluate and not last:
            self.page.now_and_then()
            self.meter.restart()
        self.losses.append(result.loss)
        self.display.note(self._note(result), done=result.step)

    def _say_alarms(self) -> None:
        self._say_remarks()
        for line in self.trainer.alarms.lines:
            self.display.say(line)

    def _log(self, row: dict[str, Any]) -> None:
        """Write a line down, wherever the recipe says."""
        self.trainer.metrics.write(row)
        for log in self.logs:
            log.write(self.trainer.metrics.rows[-1], wall_time=time.time())

    def _note(self, result: StepResult) -> str:
        """How far it is, and how it looks; on a narrow terminal what matters most."""
        p, cfg, rate = self.trainer.progress, self.cfg, self.meter.rate
        left = human_time(p.seconds / p.step * (cfg.steps - p.step))
        pieces = [
            (0, f"step {result.step} of {cfg.steps}"),
            (0, f"loss {result.loss:.3f}"),
            (2, sparkline(self.losses)),
            (1, f"{human_count(rate)} tokens/s"),
            (3, self.speed.text(rate).strip()),
            (4, f"lr {result.lr:.2g}"),
            (5, "" if self._held is None else human_bytes(self._held)),
            (6, "" if self.display.moving else f"{left} left"),  # a moving bar says so itself
        ]
        return fitted(pieces, self.display.room)

    @contextmanager
    def _other_logs(self) -> Iterator[None]:
        """Write for TensorBoard and Weights & Biases too, if the recipe says so."""
        t, cfg = self.trainer, self.cfg
        with ExitStack() as stack:
            if cfg.tensorboard:
                self.logs.append(stack.enter_context(closing(Events(t.out, step=t.progress.step))))
            if cfg.wandb != "no":
                wandb = Wandb(t.out, mode=cfg.wandb, step=t.progress.step, config=leaves(t.recipe))
                self.logs.append(stack.enter_context(closing(wandb)))
            yield

    def _row(self, result: StepResult) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        t, rate = self.trainer, self.meter.rate
        row: dict[str, Any] = {"step": result.step, "tokens": t.progress.tokens}
        row |= {"loss": result.loss, "lr": result.lr, "grad_norm": result.grad_norm}
        row |= {} if result.router_entropy is None else {"router_entropy": result.router_entropy}
        more = t.alarms.more_columns(result.loads) if self.cfg.writes(result.step) else {}
        mfu = self.speed.mfu(rate)
        more |= {} if self._held is None else {"memory": self._held}
        more |= {} if mfu is None else {"mfu": round(mfu, 4)}
        return row | {"tokens_per_s": round(rate, 1)} | more | t.alarms.columns

    def _introduce(self) -> None:
        t, say, model = self.trainer, self.display.say, self.trainer.recipe.model
        for note in t.notes:
            say(f"since the checkpoint: {note}")
        if t.restored is not None and t.progress.step < self.cfg.steps:
            say(f"going on from step {t.progress.step} of {self.cfg.steps}")
        n = sum(p.numel() for p in t.model.parameters())
        left_out = f" ({t.data.n_skipped} hidden or binary files left out)" if t.data.n_skipped else ""
        say(f"text: {t.data.description}{left_out}; {t.loader.summary()}")
        for line in data_lines(t):
            say(line)
        say(
            f"model: {human_count(n)} parameters, {counted(model.n_layers, 'layer')} of width {model.d_model}, "
            f"{t.tokenizer.vocab_size} token ids; on {t.device.type} in {str(t.precision).removeprefix('torch.')}"
        )
        if t.recipe.tune.lora is not None or t.recipe.tune.freeze:
            say(share(t.model))
        self.display.note("planning the memory")
        self.forecast = forecast(t)
        if t.progress.step < self.cfg.steps and self.forecast is not None:
            say(self.forecast.line)
        self._say_remarks()
        if any(block.attention.sees == "prefix" for block in t.recipe.model.layers()):
            say("attention.sees=prefix: plain text has no prefixes, so this run trains as if it said causal")
        if self.best_possible is not None and (n_cut := validation_cuts(t)):
            say(
                f"{n_cut} validation documents are cut by rows of {t.context} "
                "tokens: without their beginnings the best possible loss is out of reach"
            )
        if t.progress.step >= self.cfg.steps > 0:
            say(f"the run is at step {t.progress.step} of train.steps={self.cfg.steps}: raise train.steps to go on")

    def _say_remarks(self) -> None:
        """What the trainer has found out since it was last asked."""
        while self.trainer.remarks:
            self.display.say(self.trainer.remarks.pop(0))

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
        if (prompt := t.sample_prompt()) is not None:
            more: dict[str, Any] = {"n_tokens": self.cfg.sample_tokens, "borders": t.lesson.borders}
            text = sample(t.model, t.tokenizer, prompt, seed=result.step, **more)
            write_sample(t.out / "samples.txt", text, step=result.step, val_loss=val_loss)
            self.display.say(text, style="dim")

    def _examine(self) -> dict[str, Understanding]:
        """Ask the corpus's questions about combinations that were held out of training, and draw a look at 'it'."""
        t, found = self.trainer, {}
        if self.corpus is not None and self.corpus.questions is not None:
            self.display.phase("asking questions")
            for kind in ("it", "where"):
                questions = self.corpus.questions(QUESTION_SEED + t.recipe.data.seed, QUESTIONS, kind=kind)
                questions = self._that_fit(questions, lambda q: [q.prompt + said for said in (q.answer, *q.rivals)])
                if not questions:
                    continue
                found[kind] = ask(t.model, t.tokenizer, questions, precision=t.precision, notify=self.display.note)
                look = look_from(t.model, t.tokenizer, questions[0].prompt, word="it") if kind == "it" else None
                if look is not None:
                    draw_look(*look, t.out / "it.png", word="it")
        if self.corpus is not None and self.corpus.pairs is not None and t.lesson.borders is not None:
            self.display.phase("asking for held-out pairs")
            asked = list(islice(self.corpus.pairs(QUESTION_SEED + t.recipe.data.seed, held_out=True), ANSWERS))
            asked = self._that_fit(asked, lambda pair: pair)
            if asked:
                more: dict[str, Any] = {"borders": t.lesson.borders}
                found["pairs"] = ask_pairs(t.model, t.tokenizer, asked, **more, notify=self.display.note)
                across = look_across(t.model, t.tokenizer, asked[0], **more)
                draw_across(*across, t.out / f"{self.corpus.name}_attention.png")
        numbers: dict[str, Any] = {"val_loss": self.val_loss, "best_possible": self.best_possible}
        if (rate := self.took.tokens_per_s) is not None:
            numbers["speed"] = self.speed.numbers(rate)
            numbers |= {} if self.forecast is None else {"planned": told(self.forecast, t, tokens_per_s=rate)}
        t.add_to_report(understanding={kind: u.accuracy for kind, u in found.items()}, **numbers)
        return found

    def _that_fit(self, questions: Sequence[Q], texts: Callable[[Q], Sequence[str]]) -> list[Q]:
        """The questions all of whose texts the model's context holds; how many are left out is said."""
        t, room = self.trainer, self.trainer.recipe.model.max_len
        kept = [q for q in questions if all(len(t.tokenizer.encode(text)) <= room for text in texts(q))]
        if n_left := len(questions) - len(kept):
            self.display.say(
                f"{n_left} of {len(questions)} held-out questions are not asked: they are longer than the model's "
                f"context of {room} tokens"
            )
        return kept

    def _conclude(self, understanding: dict[str, Understanding], interrupted: bool) -> None:
        t, say = self.trainer, self.display.say
        if interrupted:
            say(f"stopped at step {t.progress.step} of {self.cfg.steps} and saved; go on with --resume")
            self.page.write(f"stopped after step {t.progress.step} of {self.cfg.steps}; --resume goes on")
            return
        self.page.write(f"finished: {counted(t.progress.step, 'step')}")
        numbers: dict[str, Any] = {"val_loss": self.val_loss, "best": self.best_possible}
        for line in closing_lines(t, self.took, understanding, **numbers):
            say(line)


def best_possible(trainer: Trainer, corpus: Corpus | None) -> float | None:
    """The entropy of the corpus in nats per target of the validation text, or None where it is not known.

    Every document ends with an end token, whose surprise the entropy includes; a tokenizer without one (characters)
    leaves the number unknown. Rows that cut documents read worse.
    """
    tokenizer, held = trainer.tokenizer, trainer.data.validation
    if corpus is None or corpus.entropy is None or isinstance(held, Mixture):
        return None
    if tokenizer.bos_id is None and not tokenizer.eos_ids:
        return None
    return corpus.entropy() * held.n_documents / held.n_targets


def validation_cuts(trainer: Trainer) -> int:
    """How many validation documents do not stand in a row as a whole."""
    held, packing = trainer.data.validation, trainer.recipe.data.packing
    parts = held.parts if isinstance(held, Mixture) else (held,)
    return sum(int((behind_cuts(part.starts, trainer.context, packing) > 0).sum()) for part in parts)


def _busiest(loads: Sequence[Tensor | None]) -> str:
    """How unevenly the tokens of a step were spread over the experts, in words; nothing without experts."""
    shares = [float(load.max() / load.float().mean().clamp(min=1e-9)) for load in loads if load is not None]
    return f"; the busiest expert takes {max(shares):.1f} times its share" if shares else ""


class _Stop:
    """The signal that asked the run to stop (Ctrl-C, or a scheduler's SIGTERM); a second one interrupts at once."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.by: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:
            raise KeyboardInterrupt
        self.by = number
        self.display.note("stopping after this step; Ctrl-C again stops at once, without saving")


@contextmanager
def _until_asked_to_stop(display: Display) -> Iterator[_Stop]:
    """Turn Ctrl-C and SIGTERM into a wish that the loop looks at between steps (only the main thread can)."""
    stop = _Stop(display)
    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
