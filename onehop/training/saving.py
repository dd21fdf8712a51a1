"""A run into a checkpoint and back."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onehop.base.files import sync
from onehop.training.checkpoints import TENSORS, read_about
from onehop.training.ema import FOLDER as EMA
from onehop.training.ema import PREFIX
from onehop.training.state import Progress, moments_of, put_moments, put_weights, taken, weights_of
from onehop.training.unchanged import check_same, record
from onehop.weights.native import write_native
from onehop.weights.place import new_files
from onehop.weights.safetensors_files import SINGLE, read_tensors

if TYPE_CHECKING:
    from onehop.training.trainer import Trainer


def save(t: "Trainer", *, background: bool) -> None:
    """Write a checkpoint of this moment; background: copy now, and let the trainer's writer do the rest.

    The moving average of the weights is a model of its own, in the run's folder `ema`.
    """
    t.writer.wait()  # at most one copy at a time
    weights = weights_of(t.model, copy=background)
    tensors = moments_of(t.model, t.optimizer, copy=background)
    tensors |= t.generators.tensors() if t.generators is not None else {}
    average = {} if t.average is None else {k: taken(v, background) for k, v in t.average.tensors().items()}
    tensors |= average
    about, told, p = _about(t), t.provenance(), t.progress

    def write_model(folder: Path) -> None:
        write_native(t.model, folder, tokenizer=t.tokenizer, provenance=told, tensors=weights)

    def write() -> None:
        if t.metrics.path.exists():
            sync(t.metrics.path)  # the disk has the lines up to this step before it has the step
        t.checkpoints.write(p.step, write_model, tensors=tensors, about=about, best_step=p.best_step)
        if average:
            averaged = weights | {name.removeprefix(PREFIX): value for name, value in average.items()}
            with new_files(t.out / EMA) as new:
                write_native(t.model, new, tokenizer=t.tokenizer, provenance=told, tensors=averaged)

    t.writer.start(write)
    if not background:
        t.writer.wait()


def restore(t: "Trainer", *, allow_changes: bool) -> None:
    """Put a fresh run back to its newest whole checkpoint. Raises ConfigError where it is not the same run."""
    path, faults = t.checkpoints.newest_whole()
    about = read_about(path)
    t.notes += check_same(about, _record(t), folder=t.out, allow_changes=allow_changes)
    put_weights(t.model, path / SINGLE)
    put_moments(t.model, t.optimizer, path / TENSORS)
    if t.average is not None:
        found = read_tensors(path / TENSORS)
        for name, value in t.average.tensors().items():
            value.copy_(found[name])
    t.progress = Progress(**about["progress"])
    t.alarms.restore(about["alarms"])
    if t.scaler is not None and about["scaler"]:
        t.scaler.load_state_dict(about["scaler"])
    if t.generators is not None:
        t.generators.restore(read_tensors(path / TENSORS), about["generators"])
    t.notes += [f"{fault}; going on from step {t.progress.step}" for fault in faults]
    t.restored = path


def _about(t: "Trainer") -> dict[str, Any]:
    """What a checkpoint holds beside tensors."""
    return {
        **_record(t),
        "progress": asdict(t.progress),
        "alarms": t.alarms.about(),
        "scaler": t.scaler.state_dict() if t.scaler is not None else None,
        "generators": t.generators.about() if t.generators is not None else None,
    }


def _record(t: "Trainer") -> dict[str, Any]:
    return record(t.recipe, text=t.data.identity, device=t.device, precision=t.precision)
