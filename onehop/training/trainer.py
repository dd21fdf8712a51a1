"""A run: recipe → data → model → steps → evaluation → saved result."""

import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from onehop import __version__
from onehop.base.errors import ConfigError
from onehop.base.files import atomic_write
from onehop.base.units import human_count
from onehop.config.recipe import Recipe
from onehop.config.write import to_toml
from onehop.data.loader import Loader, evaluation_batches
from onehop.data.prepare import Prepared, prepare
from onehop.model.build import build
from onehop.training.evaluate import validation_loss
from onehop.training.optimizer import adamw
from onehop.training.report import Metrics
from onehop.training.setup import pick_device, pick_precision
from onehop.training.state import Progress, load_state, save_state
from onehop.training.step import StepResult, training_step
from onehop.weights.native import save_native

WRITTEN = ("metrics.jsonl", "samples.txt", "loss.png", "it.png", "model.safetensors", "provenance.json", "state")
Notify = Callable[[str], None]


def quiet(message: str) -> None:
    """Say nothing."""


class Trainer:
    """Everything that one run holds: recipe, data, model, tokenizer, optimizer, metrics, progress, the folder `out`.

    The constructor prepares the data and builds the model; `steps` trains; `evaluate` and `save` at any time.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False, fresh: bool = False, notify: Notify = quiet):
        self.out = Path(recipe.out)
        _check_out(self.out, resume=resume, fresh=fresh)
        self.device = pick_device(recipe.train.device)
        self.precision = pick_precision(recipe.train.precision, self.device)
        self.data = _prepare(recipe, self.out / "data", notify)
        self.tokenizer = self.data.tokenizer
        vocab_size = recipe.model.vocab_size or self.tokenizer.vocab_size
        if vocab_size < self.tokenizer.vocab_size:
            raise ConfigError(
                f"model.vocab_size={vocab_size} is too small for the tokenizer's {self.tokenizer.vocab_size} ids. "
                "Leave it out or raise it."
            )
        self.recipe = recipe.model_copy(update={"model": recipe.model.with_vocab(vocab_size)})
        self.model = build(self.recipe.model, seed=recipe.train.seed, device=self.device).train()
        self.optimizer = adamw(self.model, recipe.train)
        self.row_options: dict[str, Any] = {
            "batch_size": recipe.train.micro_batch or recipe.train.batch_size,
            "length": _context(recipe),
            "packing": recipe.data.packing,
        }
        self.loader = Loader(self.data.train, seed=recipe.train.seed, **self.row_options)
        self.metrics = Metrics(self.out / "metrics.jsonl")
        self.progress = Progress(step=0, tokens=0, best_val_loss=None, seconds=0.0)
        if resume:
            self.progress = load_state(self.out / "state", self.model, self.optimizer)
        self.metrics.resume(self.progress.step)
        self.report: dict[str, Any] = {}  # what a finished run adds to its provenance
        atomic_write(self.out / "recipe.toml", to_toml(self.recipe))

    def steps(self) -> Iterator[StepResult]:
        """Train, one optimizer step at a time, from where the run stands to `train.steps`."""
        cfg = self.recipe.train
        parts = cfg.batch_size // (cfg.micro_batch or cfg.batch_size)
        batches = self.loader.batches(self.progress.step * parts)
        for index in range(self.progress.step, cfg.steps):
            began = time.perf_counter()
            micro = [next(batches).to(self.device) for _ in range(parts)]
            result = training_step(self.model, self.optimizer, micro, index=index, cfg=cfg, precision=self.precision)
            p = self.progress
            seconds = p.seconds + time.perf_counter() - began
            self.progress = Progress(index + 1, p.tokens + result.targets, p.best_val_loss, seconds)
            yield result

    def evaluate(self) -> float:
        """Validation loss (nats per target) over the same `train.eval_rows` rows each time."""
        rows = evaluation_batches(self.data.validation, n_rows=self.recipe.train.eval_rows, **self.row_options)
        batches = (batch.to(self.device) for batch in rows)
        loss = validation_loss(self.model, batches, precision=self.precision, kernel=self.recipe.train.kernel)
        p = self.progress
        best = loss if p.best_val_loss is None else min(loss, p.best_val_loss)
        self.progress = Progress(p.step, p.tokens, best, p.seconds)
        return loss

    def save(self) -> None:
        """Write the state for `--resume`, and the model as a onehop folder that everything else reads."""
        save_state(self.out / "state", self.model, self.optimizer, self.progress)
        save_native(self.model, self.out, tokenizer=self.tokenizer, provenance=self.provenance())

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


def _context(recipe: Recipe) -> int:
    return recipe.train.context or recipe.model.max_len


def _check_out(out: Path, *, resume: bool, fresh: bool) -> None:
    """Never run over an earlier result by accident."""
    held = [out / name for name in WRITTEN if (out / name).exists()]
    if held and not resume and not fresh:
        raise ConfigError(f"{out} holds a run already: go on with --resume, replace it with --fresh, or set out=OTHER.")
    if fresh:
        for path in held:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
