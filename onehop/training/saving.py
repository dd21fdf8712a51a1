"""A run into a checkpoint and back."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from onehop.base.files import sync
from onehop.formats.safetensors_header import SINGLE
from onehop.parts.lora import adapters_of
from onehop.training.checkpoints import TENSORS, read_about
from onehop.training.ema import FOLDER as EMA
from onehop.training.ema import PREFIX
from onehop.training.randomness import GENERATORS
from onehop.training.state import (
    Progress,
    beside_of,
    fill,
    moments_of,
    put_beside,
    put_moments,
    put_weights,
    taken,
    weights_of,
)
from onehop.training.unchanged import check_same, record
from onehop.weights.adapter import write_adapter
from onehop.weights.native import write_native
from onehop.weights.place import new_files
from onehop.weights.safetensors_files import read_tensors

if TYPE_CHECKING:
    from onehop.training.trainer import Trainer

ADAPTER = "adapter"  # folder of a run's adapters, by PEFT's names


def save(t: "Trainer", *, background: bool) -> None:
    """Write a checkpoint of this moment; background: copy now, and let the trainer's writer do the rest.

    The moving average of the weights is a model of its own, in the run's folder `ema`.
    """
    t.writer.wait()  # at most one copy at a time
    weights = weights_of(t.model, copy=background)
    tensors = moments_of(t.model, t.optimizer, copy=background) | beside_of(t.model, copy=background)
    tensors |= t.generators.tensors() if t.generators is not None else {}
    average = {} if t.average is None else {k: taken(v, background) for k, v in t.average.tensors().items()}
    averaged = _averaged(t, weights, average)
    about, p = _about(t), t.progress
    write_plain, write_adapters = _plain_writer(t), _adapter_writer(t, copy=background)

    def write_model(folder: Path) -> None:
        write_plain(folder, weights)
        write_adapters(folder)

    def write() -> None:
        with t.hold:
            if t.metrics.path.exists():
                sync(t.metrics.path)  # the disk has the lines up to this step before it has the step
            t.checkpoints.write(p.step, write_model, tensors=tensors | average, about=about, best_step=p.best_step)
            if averaged:
                with new_files(t.out / EMA) as new:
                    write_plain(new, averaged)

    with t.hold:
        t.writer.start(write)
        if not background:
            t.writer.wait()


def _plain_writer(t: "Trainer") -> Callable[[Path, Mapping[str, Tensor]], None]:
    """What writes tensors as the plain model of this moment, to which adapters have been added."""
    options: dict[str, Any] = {"tokenizer": t.tokenizer, "provenance": t.provenance(), "generation": t.generation()}
    return lambda folder, tensors: write_native(t.model, folder, tensors=tensors, **options)


def _adapter_writer(t: "Trainer", *, copy: bool) -> Callable[[Path], None]:
    """What writes the adapters of this moment, if there are any, into a folder of their own."""
    found = {
        name: replace(one, down=taken(one.down, copy), up=taken(one.up, copy))
        for name, one in adapters_of(t.model).items()
    }

    def write(folder: Path) -> None:
        if found:
            (folder / ADAPTER).mkdir()
            base = str(t.recipe.tune.init)
            write_adapter(t.model, folder / ADAPTER, base=base, family=t.family, adapters=found)

    return write


def _averaged(t: "Trainer", weights: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The plain model with averaged weights; of adapters their average is added. {} without `train.ema`."""
    if t.average is None:
        return {}
    if not adapters_of(t.model):
        return {**weights, **{name.removeprefix(PREFIX): value for name, value in average.items()}}
    with t.average.inside(t.model):
        return weights_of(t.model, copy=True)


def restore(t: "Trainer", *, allow_changes: bool) -> None:
    """Put a fresh run back to its newest whole checkpoint. Raises ConfigError where it is not the same run."""
    path, faults = t.checkpoints.newest_whole()
    about = read_about(path)
    t.compile_loss(_was_compiled(t, about))
    about["machine"].setdefault("compiled", t.compiled)  # checkpoints did not always tell
    t.notes += check_same(about, _record(t), folder=t.out, allow_changes=allow_changes)
    if adapters_of(t.model):
        put_beside(t.model, path / TENSORS)
    else:
        put_weights(t.model, path / SINGLE)
    put_moments(t.model, t.optimizer, path / TENSORS)
    if t.average is not None:
        fill(t.average.tensors(), path / TENSORS, prefix=PREFIX)
    t.progress = Progress(**about["progress"])
    t.alarms.restore(about["alarms"])
    if t.scaler is not None and about["scaler"]:
        t.scaler.load_state_dict(about["scaler"])
    if t.generators is not None:
        t.generators.restore(read_tensors(path / TENSORS, prefix=GENERATORS), about["generators"])
    t.notes += [f"{fault}; going on from step {t.progress.step}" for fault in faults]
    t.written = about.get("lines", t.written)  # checkpoints did not always tell
    t.restored = path


def _was_compiled(t: "Trainer", about: Mapping[str, Any]) -> bool | None:
    """Whether the run was compiled, which goes on, however many steps are added; None: as the recipe says now."""
    choice = t.recipe.train.compile
    if about["recipe"].get("train.compile") != choice:
        return None
    found: bool | None = about["machine"].get("compiled")
    never = found is None and choice == "auto" and t.device.type == "cpu"  # before checkpoints told
    return False if never else found


def _about(t: "Trainer") -> dict[str, Any]:
    """What a checkpoint holds beside tensors."""
    return {
        **_record(t),
        "progress": asdict(t.progress),
        "lines": t.metrics.written,
        "alarms": t.alarms.about(),
        "scaler": t.scaler.state_dict() if t.scaler is not None else None,
        "generators": t.generators.about() if t.generators is not None else None,
    }


def _record(t: "Trainer") -> dict[str, Any]:
    found = record(t.recipe, text=t.data.identity, base=t.base, device=t.device, precision=t.precision)
    found["machine"]["compiled"] = t.compiled
    return found
