"""A run on disk that can be taken up again: weights, both moments, counts, all of one moment, in one file."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from onehop.base.errors import CheckpointError, ConfigError
from onehop.base.files import atomic_file
from onehop.model.transformer import Transformer
from onehop.training.optimizer import Optimizers
from onehop.weights.safetensors_files import write_tensors

FORMAT = "1"
FILE = "state.safetensors"


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Order of the rows, dropout and learning rate follow from these and the recipe's seed.

    tokens: targets learned from. skipped: steps whose gradient was not finite. seconds: spent in steps.
    """

    step: int = 0
    tokens: int = 0
    best_val_loss: float | None = None
    seconds: float = 0.0
    skipped: int = 0


Facts = Mapping[str, Any]  # what has to be the same when a run is resumed: key of the recipe -> value


def save_state(
    folder: Path,
    model: Transformer,
    optimizer: Optimizers,
    *,
    progress: Progress,
    facts: Facts,
    extra: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Write the state whole or not at all: the one that was there before stays until a single rename."""
    weights = {f"model/{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    moments = {f"optimizer/{name}": tensor for name, tensor in _moments(model, optimizer).items()}
    about = {"onehop_state": FORMAT, "progress": json.dumps(asdict(progress)), "facts": json.dumps(dict(facts))}
    with atomic_file(folder / FILE) as temporary:
        write_tensors(temporary, {**weights, **moments, **extra}, metadata=about)


def load_state(
    folder: Path,
    model: Transformer,
    optimizer: Optimizers,
    *,
    facts: Facts,
    extra: Mapping[str, Tensor] = MappingProxyType({}),
) -> Progress:
    """Put weights, moments and the tensors of `extra` back, bit for bit.

    Raises CheckpointError for a missing, damaged or foreign state, and ConfigError where `facts` differ from the run's.
    """
    file = folder / FILE
    try:
        with safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
            if about.get("onehop_state") != FORMAT:
                raise CheckpointError(f"{file} was written by another version of onehop. Start a fresh run.")
            _check_facts(json.loads(about["facts"]), facts, folder)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (not a dict)
            progress = Progress(**json.loads(about["progress"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}). Restore it, or start over with --fresh.") from None
    _put_weights(model, {k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")}, file)
    _put_moments(model, optimizer, tensors)
    for name, tensor in extra.items():
        tensor.copy_(tensors[name])
    return progress


def remove_leftovers(folder: Path) -> None:
    """Remove what a save that was killed left half-written: names as `base.files` gives them."""
    for path in folder.glob(".*"):
        if path.is_file() and re.fullmatch(r"\..+\.[0-9a-f]{8}(\.\w+)?", path.name):
            path.unlink(missing_ok=True)


def _check_facts(before: Facts, now: Facts, folder: Path) -> None:
    now = json.loads(json.dumps(dict(now)))
    for key in sorted({*before, *now}, key=lambda key: (key.count("."), key)):
        if before.get(key) != now.get(key):
            was, wanted = (f"{key}={_shown(facts.get(key))}" for facts in (before, now))
            changed = "the text has changed" if key == "text" else f"it has {was}, and the recipe now says {wanted}"
            raise ConfigError(
                f"{folder} cannot be resumed: {changed}. Resume with what it began with, or train into another `out`."
            )


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


def _put_weights(model: Transformer, weights: Mapping[str, Tensor], file: Path) -> None:
    own = model.state_dict()
    if own.keys() != weights.keys():
        raise CheckpointError.names(
            absent=own.keys() - weights.keys(), unclaimed=weights.keys() - own.keys(), where=str(file)
        )
    model.load_state_dict(weights)


def _moments(model: Transformer, optimizer: Optimizers) -> dict[str, Tensor]:
    """The optimizer's tensors under the names of their parameters: 'layers.0…weight/exp_avg'."""
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}/{key}"] = value.detach()
    return found


def _put_moments(model: Transformer, optimizer: Optimizers, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for path, tensor in tensors.items():
        if path.startswith("optimizer/"):
            name, _, key = path.removeprefix("optimizer/").rpartition("/")
            parameter = parameters[name]
            optimizer.state[parameter][key] = tensor.to(parameter.device)
