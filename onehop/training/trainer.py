"""A run: recipe → data → model → steps → evaluation → saved result."""

import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from onehop import __version__
from onehop.base.errors import CheckpointError, ConfigError, OnehopError
from onehop.base.files import atomic_file, atomic_write
from onehop.base.units import human_count
from onehop.config.origins import leaves
from onehop.config.recipe import Recipe
from onehop.config.write import to_toml
from onehop.data.loader import Loader, evaluation_batches
from onehop.data.prepare import Prepared, prepare, remove_others
from onehop.model.build import build
from onehop.training.evaluate import validation_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.report import Metrics
from onehop.training.setup import pick_device, pick_precision, pick_product
from onehop.training.state import FILE, Progress, load_state, remove_leftovers, save_state
from onehop.training.step import StepResult, training_step
from onehop.training.tracked import Tracked
from onehop.weights.native import PROVENANCE, save_native, write_json

RESULTS = ("metrics.jsonl", "samples.txt", "loss.png", "it.png", "model.safetensors", PROVENANCE, FILE)
MOST_SKIPPED = 20  # steps in a row whose gradient is not finite: the run has diverged and will not come back
Notify = Callable[[str], None]


def quiet(message: str) -> None:
    """Say nothing."""


class Trainer:
    """Everything that one run holds: recipe, data, model, tokenizer, optimizer, metrics, progress, the folder `out`.

    The constructor prepares the data and builds the model; `steps` trains; `evaluate` and `save` at any time. A recipe
    that is refused leaves nothing behind, and an earlier run where it was.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False, fresh: bool = False, notify: Notify = quiet):
        self.out, self.notify = Path(recipe.out), notify
        _check_out(self.out, resume=resume, fresh=fresh)
        if recipe.model.encoder is not None:
            raise ConfigError(
                "model.encoder: an encoder-decoder learns from pairs of source and target, and training reads plain "
                "text so far. Leave model.encoder out."
            )
        self.device = pick_device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device)
        with _nothing_left(self.out):
            self.data = _prepare(recipe, self.out / "data", notify)
            self.tokenizer = self.data.tokenizer
            self.recipe = _with_vocab(recipe, self.tokenizer.vocab_size)
            self._check_sample()
            self.row_options: dict[str, Any] = {
                "batch_size": recipe.train.micro_batch or recipe.train.batch_size,
                "length": self.context,
                "packing": recipe.data.packing,
            }
            self.loader = Loader(self.data.train, seed=recipe.train.seed, **self.row_options)
            self.model = build(self.recipe.model, seed=recipe.train.seed, device=self.device).train()
            pick_product(self.model, self.device)
            self.optimizer = make_optimizer(self.model, recipe.train)
            self.progress, self.tracked = Progress(), Tracked(self.model, self.optimizer, self.device)
            if resume:
                self.progress = load_state(self.out, self.model, self.optimizer, facts=self._facts())
        _check_out(self.out, resume=resume, fresh=fresh)  # again: another run may have begun while the text was read
        self._begin(fresh)
        self.metrics = Metrics(self.out / "metrics.jsonl", step=self.progress.step)
        self.report: dict[str, Any] = {}  # what a finished run adds to its provenance

    @property
    def context(self) -> int:
        """Tokens per row."""
        return self.recipe.train.context or self.recipe.model.max_len

    def steps(self) -> Iterator[StepResult]:
        """Train, one optimizer step at a time, from where the run stands to `train.steps`."""
        cfg = self.recipe.train
        parts = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)
        batches = self.loader.batches(self.progress.step * parts)
        in_a_row = 0
        for index in range(self.progress.step, cfg.steps):
            began, p = time.perf_counter(), self.progress
            micro = [next(batches).to(self.device) for _ in range(parts)]
            options: dict[str, Any] = {"index": index, "cfg": cfg, "precision": self.precision, "n_skipped": p.skipped}
            step = partial(training_step, self.model, self.optimizer, micro, **options)
            result = self.tracked.step(step, packed=any(batch.packed for batch in micro))
            self.progress = replace(
                p,
                step=result.step,
                tokens=p.tokens + result.targets,
                seconds=p.seconds + time.perf_counter() - began,
                skipped=p.skipped + result.skipped,
            )
            in_a_row = in_a_row + 1 if result.skipped else 0
            if in_a_row == MOST_SKIPPED:
                raise self._diverged(
                    f"the gradients of {MOST_SKIPPED} steps in a row, up to step {result.step}, were not finite"
                )
            yield result

    def evaluate(self) -> float:
        """Validation loss (nats per target) over the same `train.eval_rows` rows each time."""
        cfg = self.recipe.train
        rows = evaluation_batches(self.data.validation, n_rows=cfg.eval_rows, **self.row_options)
        batches = (batch.to(self.device) for batch in rows)
        loss = validation_loss(self.model, batches, precision=self.precision, kernel=cfg.kernel, notify=self.notify)
        if not math.isfinite(loss):
            raise self._diverged(f"the validation loss after step {self.progress.step} is {loss}")
        best = self.progress.best_val_loss
        self.progress = replace(self.progress, best_val_loss=loss if best is None else min(loss, best))
        return loss

    def save(self) -> None:
        """Write the state for `--resume`, and the model as a onehop folder that everything else reads."""
        save_state(self.out, self.model, self.optimizer, progress=self.progress, facts=self._facts())
        save_native(self.model, self.out, tokenizer=self.tokenizer, provenance=self.provenance())

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
            "tokens_seen": self.progress.tokens,
            "step": self.progress.step,
            "best_val_loss": self.progress.best_val_loss,
            "seconds": round(self.progress.seconds, 1),
            "versions": {"onehop": __version__, "torch": torch.__version__, "python": platform.python_version()},
            **self.report,
        }

    def _diverged(self, what: str) -> OnehopError:
        cfg = self.recipe.train
        return OnehopError(
            f"{what}: the run has diverged. Lower train.lr={cfg.lr:g}, or raise train.warmup={cfg.warmup}."
        )

    def _facts(self) -> Mapping[str, Any]:
        """What a resumed run must not change: the model, the text, and the order in which it is read."""
        same = ("train.batch_size", "train.micro_batch", "train.context", "train.seed", "data.packing")
        found = {k: v for k, v in leaves(self.recipe).items() if k.startswith("model.") or k in same}
        return {"text": self.data.folder.name, **{k: v for k, v in found.items() if k != "model.parts"}}

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
        if fresh:
            for name in RESULTS:
                (self.out / name).unlink(missing_ok=True)
            remove_others(self.data)
        remove_leftovers(self.out)
        atomic_write(self.out / "recipe.toml", to_toml(self.recipe))


def _prepare(recipe: Recipe, folder: Path, notify: Notify) -> Prepared:
    """The text of the recipe as a tokenizer and token shards."""

    def progress(what: str, done: int, total: int | None) -> None:
        notify(f"{what}: {human_count(done)}" + (f" of {human_count(total)}" if total else ""))

    d = recipe.data
    return prepare(
        folder=folder,
        files=d.files,
        corpus=d.corpus,
        n_documents=d.n_documents,
        separator=d.separator,
        jsonl_field=d.jsonl_field,
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
    if resume and not (out / FILE).is_file():
        raise CheckpointError(f"{out} holds nothing to resume: {FILE} is missing. Start without --resume.")
    if not resume and not fresh and any((out / name).exists() for name in RESULTS):
        raise ConfigError(
            f"{out} holds a run already: go on with --resume, replace it with --fresh, or set out=OTHER "
            "(in Python: resume=True, fresh=True)."
        )


@contextmanager
def _nothing_left(out: Path) -> Iterator[None]:
    """Remove the folder again if it is new and its block fails."""
    first = next((parent for parent in (*reversed(out.parents), out) if not parent.exists()), None)
    try:
        yield
    except BaseException:
        if first is not None:
            shutil.rmtree(first, ignore_errors=True)
        raise
