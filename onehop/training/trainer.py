"""A run: recipe → data → model → steps → evaluation → saved result."""

import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from onehop import __version__
from onehop.base.errors import CheckpointError, ConfigError, Diverged
from onehop.base.files import atomic_file, atomic_write
from onehop.base.units import human_count
from onehop.config.data import TextConfig
from onehop.config.recipe import Recipe, TrainConfig
from onehop.config.write import to_toml
from onehop.data.loader import Batch, Loader, evaluation_batches, joined
from onehop.data.prepare import Prepared, prepare, remove_others
from onehop.data.report import data_report
from onehop.model.build import build
from onehop.model.recompute import recompute
from onehop.training.alarms import Alarms, note_skipped
from onehop.training.checkpoints import FOLDER, Checkpoints, Writer, remove_leftovers
from onehop.training.compiled import pick_loss
from onehop.training.ema import FOLDER as EMA
from onehop.training.ema import Average
from onehop.training.evaluate import validation_loss
from onehop.training.events import FOLDER as EVENTS
from onehop.training.events import check_logs
from onehop.training.optimizer import make_optimizer
from onehop.training.randomness import Generators, has_own_parts
from onehop.training.report import Metrics, keep_until
from onehop.training.saving import restore, save
from onehop.training.schedule import parts
from onehop.training.setup import loss_scaler, pick_device, pick_precision, pick_product, repeating
from onehop.training.state import Progress
from onehop.training.step import StepResult, training_step
from onehop.training.tracked import Tracked
from onehop.training.width import start_narrow, transferred
from onehop.weights.native import PROVENANCE, write_json
from onehop.weights.safetensors_files import SINGLE

SKIPPED = "skipped.jsonl"
RESULTS = ("metrics.jsonl", "samples.txt", "loss.png", "it.png", "report.html", SKIPPED, SINGLE, PROVENANCE)
Notify = Callable[[str], None]


def quiet(message: str) -> None:
    """Say nothing."""


class Trainer:
    """Everything that one run holds: recipe, data, model, tokenizer, optimizer, metrics, progress, the folder `out`.

    The constructor prepares the data and builds the model; `steps` trains; `evaluate` and `save` at any time. A recipe
    that is refused leaves nothing behind, and an earlier run where it was. allow_changes: resume a run though
    its numbers will not be those that it would have had. `notes` says what has changed since the checkpoint. data:
    where the encoded text is kept, if runs share it (left out: in `out`).
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
    ):
        self.out, self.data_folder, self.notify = Path(recipe.out), data or Path(recipe.out) / "data", notify
        self.checkpoints, self.writer = Checkpoints(self.out, keep=recipe.train.keep), Writer()
        self.remarks: list[str] = []  # what the session has still to say
        _check_out(self.out, resume=resume, fresh=fresh)
        if recipe.model.encoder is not None:
            raise ConfigError(
                "model.encoder: an encoder-decoder learns from pairs of source and target, and training reads plain "
                "text so far. Leave model.encoder out."
            )
        check_logs(recipe.train)
        self.device = pick_device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device)
        with nothing_left(self.out):
            self.data = _prepare(recipe, self.data_folder, notify)
            self.tokenizer = self.data.tokenizer
            self.recipe = _with_vocab(recipe, self.tokenizer.vocab_size)
            self._check_sample()
            self.row_options: dict[str, Any] = {
                "batch_size": recipe.train.micro_batch or recipe.train.batch_size,
                "length": self.context,
                "packing": recipe.data.packing,
            }
            self._make()
            if resume:
                restore(self, allow_changes=allow_changes)
        _check_out(self.out, resume=resume, fresh=fresh)  # again: another run may have begun while the text was read
        self._begin(fresh)
        self.metrics = Metrics(self.out / "metrics.jsonl", step=self.progress.step)
        self.report: dict[str, Any] = {}  # what a finished run adds to its provenance

    def _make(self) -> None:
        """The fresh run: its order of rows, model, optimizer and all that goes with them."""
        cfg = self.recipe.train
        self.loader = Loader(self.data.train, seed=cfg.seed, **self.row_options)
        self.data_report = data_report(self.data, self.loader)
        self.model = build(transferred(self.recipe), seed=cfg.seed, device=self.device).train()
        pick_product(self.model, self.device)
        self._follow(cfg)
        self.scaler = loss_scaler(self.device, self.precision)
        self.generators = Generators(cfg.seed, self.device) if has_own_parts(self.model) else None
        self.alarms, self.progress = Alarms(cfg), Progress()
        beside = () if self.average is None else self.average.tensors().values()
        self.tracked = Tracked(self.model, self.optimizer, self.device, beside=beside)
        self.notes: list[str] = []
        self.restored: Path | None = None

    def _follow(self, cfg: TrainConfig) -> None:
        """What a model is trained with: width, memory, compiler, optimizer and average, by the recipe."""
        width = self.recipe.model.d_model
        if cfg.width_transfer is not None:
            start_narrow(self.model, cfg.width_transfer, width)
        recompute(self.model, cfg.recompute)
        self.loss_of = pick_loss(cfg, self.device, note=self.notify, say=self.remarks.append)
        self.optimizer = make_optimizer(self.model, cfg, width=width)
        self.average = None if cfg.ema is None else Average(self.model, cfg.ema)

    @property
    def context(self) -> int:
        """Tokens per row."""
        return self.recipe.train.context or self.recipe.model.max_len

    def steps(self) -> Iterator[StepResult]:
        """Train, one optimizer step at a time, from where the run stands to `train.steps`."""
        cfg = self.recipe.train
        batches = self.loader.batches(self.progress.batches)
        for index in range(self.progress.step, cfg.steps):
            began, p = time.perf_counter(), self.progress
            micro = [self.placed(next(batches)) for _ in range(parts(index, cfg))]
            options: dict[str, Any] = {"index": index, "cfg": cfg, "precision": self.precision, "n_skipped": p.skipped}
            options |= {"scaler": self.scaler, "look": self.alarms.look if cfg.writes(index + 1) else None}
            options["loss_of"] = self.loss_of
            with self._inside():
                step = partial(training_step, self.model, self.optimizer, micro, **options)
                result = self.tracked.step(step, packed=any(batch.packed for batch in micro))
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
        rows = evaluation_batches(self.data.validation, n_rows=cfg.eval_rows, **self.row_options)
        options: dict[str, Any] = {"precision": self.precision, "kernel": cfg.kernel, "chunk": cfg.loss_chunk}
        with self._inside():
            return validation_loss(self.model, map(self.placed, rows), notify=self.notify, **options)

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
        if p.in_a_row == cfg.max_skipped:
            kept = "" if overflow else f" (their token ids are in {self.out / SKIPPED})"
            raise self._diverged(
                f"the gradients of {cfg.max_skipped} steps in a row, up to step {result.step}, were not finite{kept}"
            )

    def _check_sample(self) -> None:
        """Refuse a sample prompt now that would be refused after the first evaluation."""
        cfg = self.recipe.train
        n = len(self.tokenizer.encode(cfg.sample)) if cfg.sample_tokens else 0
        if n >= self.recipe.model.max_len:
            raise ConfigError(
                f"train.sample has {n} tokens, and model.max_len={self.recipe.model.max_len} leaves no room for more. "
                "Shorten it."
            )

    def _begin(self, fresh: bool) -> None:
        """Make the folder ready: nothing of an earlier run with `fresh`, nothing half-written, and the recipe."""
        remove_leftovers(self.out)
        if fresh:
            for name in RESULTS:
                (self.out / name).unlink(missing_ok=True)
            shutil.rmtree(self.out / EMA, ignore_errors=True)
            self.checkpoints.remove()
            for file in (self.out / EVENTS).glob("events.out.tfevents.*"):
                file.unlink()
            if self.data_folder == self.out / "data":  # what runs share is not for one of them to clear
                remove_others(self.data)
        elif self.restored is not None:
            self.checkpoints.set_aside(self.restored)
            self.checkpoints.show(self.restored)
            keep_until(self.out / SKIPPED, self.progress.step)
        atomic_write(self.out / "recipe.toml", to_toml(self.recipe))


def _prepare(recipe: Recipe, folder: Path, notify: Notify) -> Prepared:
    """The text of the recipe as a tokenizer and token shards."""

    def progress(what: str, done: int, total: int | None) -> None:
        notify(f"{what}: {human_count(done)}" + (f" of {human_count(total)}" if total else ""))

    d = recipe.data
    return prepare(
        **d.model_dump(include=set(TextConfig.model_fields)),
        folder=folder,
        mixture=d.mixture,
        deduplicate=d.deduplicate,
        stream=d.stream,
        tokenizer=d.tokenizer,
        vocab_size=d.vocab_size,
        validation=d.validation,
        seed=d.seed,
        progress=progress,
    )


def _with_vocab(recipe: Recipe, n_ids: int) -> Recipe:
    """The recipe with a model that has a row for each of the tokenizer's ids."""
    vocab_size = recipe.model.vocab_size or n_ids
    if vocab_size < n_ids:
        raise ConfigError(
            f"model.vocab_size={vocab_size} is too small for the tokenizer's {n_ids} ids. Leave it out or raise it."
        )
    return recipe.model_copy(update={"model": recipe.model.with_vocab(vocab_size)})


def _check_out(out: Path, *, resume: bool, fresh: bool) -> None:
    """Never run over an earlier result by accident."""
    if resume and fresh:
        raise ConfigError("--resume goes on with a run and --fresh replaces it: give one of them.")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out} is a file, and a run needs a folder. Set out=OTHER.")
    checkpoints = Checkpoints(out, keep=1).newest_first()
    begun = checkpoints or any((out / name).exists() for name in RESULTS)
    if resume and not checkpoints:
        way = "It ended before its first checkpoint: start over with --fresh." if begun else "Start without --resume."
        raise CheckpointError(f"{out} holds nothing to resume: {FOLDER} is missing. {way}")
    if not resume and not fresh and begun:
        raise ConfigError(
            f"{out} holds a run already: go on with --resume, replace it with --fresh, or set out=OTHER "
            "(in Python: resume=True, fresh=True)."
        )


@contextmanager
def nothing_left(out: Path) -> Iterator[None]:
    """Remove the folder again if it is new and its block fails."""
    first = next((parent for parent in (*reversed(out.parents), out) if not parent.exists()), None)
    try:
        yield
    except BaseException:
        if first is not None:
            shutil.rmtree(first, ignore_errors=True)
        raise
