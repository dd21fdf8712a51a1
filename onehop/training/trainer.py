"""A run: recipe → data → model → steps → evaluation → saved result."""

import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from onehop import __version__
from onehop.base.errors import ConfigError, DataError, Diverged
from onehop.base.files import atomic_file, atomic_write
from onehop.config.recipe import Recipe, TrainConfig
from onehop.config.task import MaskedConfig
from onehop.config.write import to_toml
from onehop.data.loader import Batch, joined
from onehop.data.prepare import remove_others
from onehop.machine.heap import keeping_freed_memory
from onehop.model.recompute import recompute
from onehop.training.alarms import Alarms, note_skipped
from onehop.training.begin import Checkpoint, begin
from onehop.training.checkpoints import Checkpoints, Writer, remove_leftovers
from onehop.training.compiled import Compiled, pick_loss
from onehop.training.ema import FOLDER as EMA
from onehop.training.ema import Average
from onehop.training.evaluate import validation_loss
from onehop.training.events import check_logs
from onehop.training.folder import RECIPE, SKIPPED, check_out, clear, nothing_left, step_of
from onehop.training.hold import Hold
from onehop.training.lessons import make_lesson
from onehop.training.optimizer import make_optimizer
from onehop.training.randomness import Generators, has_own_parts
from onehop.training.report import Metrics, keep_until
from onehop.training.saving import restore, save
from onehop.training.schedule import parts
from onehop.training.setup import loss_scaler, pick_device, pick_precision, pick_product, repeating
from onehop.training.speed import Read
from onehop.training.state import Progress, frozen_digest
from onehop.training.step import StepResult, training_step
from onehop.training.tracked import Tracked, size_of
from onehop.training.width import start_narrow
from onehop.weights.native import PROVENANCE, write_json

Notify = Callable[[str], None]


def quiet(message: str) -> None:
    """Say nothing."""


class Trainer:
    """Everything that one run holds: recipe, data, model, tokenizer, optimizer, metrics, progress, the folder `out`.

    The constructor prepares the data and builds the model; `steps` trains; `evaluate` and `save` at any time. A recipe
    that is refused leaves nothing behind, and an earlier run where it was. allow_changes: resume a run though
    its numbers will not be those that it would have had. `notes` says what has changed since the checkpoint. data:
    where the encoded text is kept, if runs share it (left out: in `out`). While a run is made, takes steps or saves,
    another one in its folder is refused; until: from its making until this stack closes.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        resume: bool = False,
        fresh: bool = False,
        allow_changes: bool = False,
        data: Path | None = None,
        notify: Notify = quiet,
        until: ExitStack | None = None,
    ):
        self.out, self.data_folder, self.notify = Path(recipe.out), data or Path(recipe.out) / "data", notify
        self.checkpoints, self.writer = Checkpoints(self.out, keep=recipe.train.keep), Writer()
        self.remarks: list[str] = []  # what the session has still to say
        self.hold = Hold(self.out)
        self.report: dict[str, Any] = {}  # what a finished run adds to its provenance
        self.read = Read()  # since this process began
        check_out(recipe, resume=resume, fresh=fresh)
        check_logs(recipe.train)
        self.device = pick_device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device)
        with ExitStack() as here:
            with nothing_left(self.out):
                (until or here).enter_context(self.hold)
                self._prepare(recipe, resume=resume, allow_changes=allow_changes)
            check_out(recipe, resume=resume, fresh=fresh)  # again: where nothing holds a folder, another may have begun
            self._begin(fresh)
            self.metrics = Metrics(self.out / "metrics.jsonl", step=self.progress.step)
            self.notes += self.metrics.missing(self.written)

    def _prepare(self, recipe: Recipe, *, resume: bool, allow_changes: bool) -> None:
        """The text, the model and all that is refused before the folder is touched."""
        begun = None if recipe.tune.init is None else Checkpoint.open(recipe, self.device)
        known: dict[str, Any] = {} if begun is None else begun.known(recipe)
        self.lesson = make_lesson(recipe, self.data_folder, self.notify, **known)
        self.data, self.loader, self.data_report = self.lesson.data, self.lesson.loader, self.lesson.report
        self.tokenizer = self.data.tokenizer
        self.recipe = _with_vocab(recipe, self.tokenizer.vocab_size)
        self._check_evaluation()
        self.sample_prompt()  # a refusal comes now and not after the first evaluation
        self._make(begun)
        if resume:
            restore(self, allow_changes=allow_changes)
        else:
            self.compile_loss()

    def _make(self, begun: Checkpoint | None) -> None:
        """The fresh run: its model, optimizer and all that goes with them."""
        cfg = self.recipe.train
        self.model = begin(self.recipe, begun, device=self.device)
        self.family = None if begun is None else begun.family
        self.base = None if self.recipe.tune.lora is None else frozen_digest(self.model)
        pick_product(self.model, self.device)
        self._follow(cfg)
        self.scaler = loss_scaler(self.device, self.precision)
        self.generators = Generators(cfg.seed, self.device) if has_own_parts(self.model) else None
        self.alarms, self.progress = Alarms(cfg), Progress()
        beside = () if self.average is None else self.average.tensors().values()
        self.tracked = Tracked(self.model, self.optimizer, self.device, beside=beside)
        self.notes: list[str] = []
        self.restored: Path | None = None
        self.written = [0, 0]  # lines of metrics.jsonl that its checkpoint knew of, and the step of the last
        self.last: StepResult | None = None  # the step that was taken last, also the one that ends a run

    def _follow(self, cfg: TrainConfig) -> None:
        """What a model is trained with: width, memory, optimizer and average, by the recipe."""
        width = self.recipe.model.d_model
        if cfg.width_transfer is not None:
            start_narrow(self.model, cfg.width_transfer, width)
        recompute(self.model, cfg.recompute)
        self.optimizer = make_optimizer(self.model, cfg, width=width, precision=self.precision)
        self.average = None if cfg.ema is None else Average(self.model, cfg.ema)

    def compile_loss(self, wanted: bool | None = None) -> None:
        """Compile the loss, or not: by the recipe, or as it was in the run that is resumed (`wanted`)."""
        told: dict[str, Any] = {"note": self.notify, "say": self.remarks.append}
        self.loss_of = pick_loss(self.recipe, self.device, wanted=wanted, **told)

    @property
    def compiled(self) -> bool:
        """Whether steps go through the compiler."""
        return isinstance(self.loss_of, Compiled) and self.loss_of.works

    @property
    def waited(self) -> float:
        """Seconds in steps that went to the compiler."""
        return self.loss_of.seconds if isinstance(self.loss_of, Compiled) else 0.0

    @property
    def context(self) -> int:
        """Tokens per row."""
        return self.recipe.train.context or self.recipe.model.max_len

    def steps(self) -> Iterator[StepResult]:
        """Train, one optimizer step at a time, from where the run stands to `train.steps`.

        Meanwhile no other run begins in its folder.
        """
        with self.hold, keeping_freed_memory(self.device.type == "cpu"):
            yield from self._steps()

    def _steps(self) -> Iterator[StepResult]:
        cfg = self.recipe.train
        batches = self.loader.batches(self.progress.batches)
        for index in range(self.progress.step, cfg.steps):
            began, p = time.perf_counter(), self.progress
            given = [next(batches) for _ in range(parts(index, cfg))]
            self.read, micro = self.read.plus(given), [self.placed(batch) for batch in given]
            options: dict[str, Any] = {"index": index, "cfg": cfg, "precision": self.precision, "n_skipped": p.skipped}
            options |= {"scaler": self.scaler, "look": self.alarms.look if cfg.writes(index + 1) else None}
            options["loss_of"] = self.loss_of
            with self._inside():
                step = partial(training_step, self.model, self.optimizer, micro, **options)
                result = self.tracked.step(step, size=size_of(self.model, micro), as_written=not self.compiled)
            self.progress = replace(
                p,
                step=result.step,
                tokens=p.tokens + result.targets,
                batches=p.batches + len(micro),
                seconds=p.seconds + time.perf_counter() - began,
                skipped=p.skipped + result.skipped,
                in_a_row=p.in_a_row + 1 if result.skipped else 0,
            )
            if self.average is not None and not result.skipped:
                self.average.update(self.model, self.progress.step - self.progress.skipped)
            self.last = result
            self._watch(result, micro)
            self.writer.check()
            yield result

    def evaluate(self) -> float:
        """Validation loss (nats per target) over the same `train.eval_rows` rows each time."""
        loss = self._validation_loss()
        if not math.isfinite(loss):
            raise self._diverged(f"the validation loss after step {self.progress.step} is {loss}")
        self.progress = self.judged(loss)
        return loss

    def evaluate_average(self) -> float | None:
        """The same of the weights' moving average; None without `train.ema`."""
        if self.average is None:
            return None
        with self.average.inside(self.model):
            return self._validation_loss()

    def _validation_loss(self) -> float:
        cfg = self.recipe.train
        rows = map(self.placed, self.lesson.evaluation())
        options: dict[str, Any] = {"precision": self.precision, "kernel": cfg.kernel, "chunk": cfg.loss_chunk}
        with self._inside():
            return validation_loss(self.model, rows, notify=self.notify, **options)

    def judged(self, loss: float) -> Progress:
        """The progress with the validation loss of the weights as they are."""
        p = self.progress
        better = p.best_val_loss is None or loss < p.best_val_loss
        return replace(p, best_val_loss=loss, best_step=p.step) if better else p

    @property
    def is_best(self) -> bool:
        """Whether the weights are those with the lowest validation loss so far."""
        return self.progress.best_step == self.progress.step

    def save(self, *, background: bool = False) -> None:
        """Write a checkpoint, and show its model in `out` as a onehop folder that everything else reads.

        background: copy now and write while the training goes on; `writer.wait()` waits for it and raises its errors.
        """
        save(self, background=background)

    def generation(self) -> dict[str, Any] | None:
        """The tokens that answers begin and end with, where those are not the tokenizer's own (None)."""
        borders = self.lesson.borders
        return None if borders is None else {"decoder_start_token_id": borders.start, "eos_token_id": borders.end}

    def add_to_report(self, **facts: Any) -> None:
        """Write more about the saved model into its provenance."""
        self.report |= facts
        with atomic_file(self.out / PROVENANCE) as temporary:
            write_json(temporary, self.provenance())

    def provenance(self) -> dict[str, Any]:
        """What made this model: recipe, text, versions, how far it has come."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "text": self.data.description,
            "data": self.data_report,
            "tokens_seen": self.progress.tokens,
            "step": self.progress.step,
            "best_val_loss": self.progress.best_val_loss,
            "seconds": round(self.progress.seconds, 1),
            "optimizer": self.optimizer.summary(),
            "versions": {"onehop": __version__, "torch": torch.__version__, "python": platform.python_version()},
            **self.report,
        }

    def _diverged(self, what: str) -> Diverged:
        cfg = self.recipe.train
        return Diverged(f"{what}: the run has diverged. Lower train.lr={cfg.lr:g}, or raise train.warmup={cfg.warmup}.")

    def placed(self, batch: Batch) -> Batch:
        """A batch as the model reads it: on its device, its documents apart or joined."""
        return (joined(batch) if self.recipe.data.documents == "joined" else batch).to(self.device)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """How the model is run: by the run's own generators and, if asked, by algorithms that repeat."""
        with repeating(self.recipe.train.deterministic):
            with self.generators.inside() if self.generators is not None else nullcontext():
                yield

    def _watch(self, result: StepResult, micro: Sequence[Batch]) -> None:
        """Look for what is wrong with a step; a run whose steps move nothing any more ends here."""
        cfg, p = self.recipe.train, self.progress
        overflow = self.scaler is not None and math.isfinite(result.loss)  # the scale was too high; it has been lowered
        self.alarms.hear(result)
        if result.skipped and not overflow:
            note_skipped(self.out / SKIPPED, result, micro)
        if p.step == cfg.steps and not p.tokens and not p.skipped:
            raise DataError(f"no step had a token to predict, with train.context={self.context}.{self._more_targets()}")
        nothing_moved = p.step == cfg.steps == p.skipped
        if p.in_a_row >= cfg.max_skipped or nothing_moved:
            kept = "" if overflow else f" (their token ids are in {self.out / SKIPPED})"
            raise self._diverged(
                f"the gradients of {p.in_a_row} step{'s in a row' * (p.in_a_row > 1)}, up to step {result.step}, "
                f"were not finite{kept}"
            )

    def sample_prompt(self) -> Sequence[int] | None:
        """Token ids that a sample goes on from: `train.sample`, or what the lesson takes instead; None for no sample.

        Of the lesson's own choice only the end is taken where all of it leaves no room; a given one is refused then.
        """
        cfg, prompt, max_len = self.recipe.train, self.lesson.prompt, self.recipe.model.max_len
        if not cfg.sample_tokens or prompt is None:
            return None
        ids = prompt(cfg.sample)
        if len(ids) < max_len:
            return ids
        if cfg.sample:
            raise ConfigError(
                f"train.sample has {len(ids)} tokens, and model.max_len={max_len} leaves no room for more. Shorten it."
            )
        return ids[-max(max_len - cfg.sample_tokens, max_len // 2) :]

    def _check_evaluation(self) -> None:
        """Refuse validation rows in which nothing is asked for: their loss would be that of no token."""
        if any(batch.n_targets for batch in self.lesson.evaluation()):
            return
        raise DataError(
            f"the validation rows hold no token to predict, with train.context={self.context} and "
            f"train.eval_rows={self.recipe.train.eval_rows}.{self._more_targets()}"
        )

    def _more_targets(self) -> str:
        """The way out where there is nothing to predict."""
        rate = ", or raise task.rate" if isinstance(self.recipe.task, MaskedConfig) else ""
        return f" Give more text, or longer rows{rate}."

    def _begin(self, fresh: bool) -> None:
        """Make the folder ready: nothing of an earlier run with `fresh`, nothing half-written, and the recipe."""
        remove_leftovers(self.out)
        if fresh:
            clear(self.out, self.checkpoints)
            if self.data_folder == self.out / "data":  # what runs share is not for one of them to clear
                remove_others(self.data)
        elif self.restored is not None:
            self.checkpoints.set_aside(self.restored)
            self.checkpoints.show(self.restored)
            keep_until(self.out / SKIPPED, self.progress.step)
            if step_of(self.out / EMA) != self.progress.step:  # of a checkpoint that is set aside; the next save has it
                shutil.rmtree(self.out / EMA, ignore_errors=True)
        atomic_write(self.out / RECIPE, to_toml(self.recipe))


def _with_vocab(recipe: Recipe, n_ids: int) -> Recipe:
    """The recipe with a model that has a row for each of the tokenizer's ids."""
    vocab_size = recipe.model.vocab_size or n_ids
    if vocab_size < n_ids:
        raise ConfigError(
            f"model.vocab_size={vocab_size} is too small for the tokenizer's {n_ids} ids. Leave it out or raise it."
        )
    return recipe.model_copy(update={"model": recipe.model.with_vocab(vocab_size)})
