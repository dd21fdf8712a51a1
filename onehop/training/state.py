"""A run on disk that can be taken up again: weights, both moments, step count, all of one moment in time."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.base.files import atomic_folder
from onehop.model.transformer import Transformer

FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Order of the rows, dropout and learning rate follow from `step` and the recipe's seed."""

    step: int
    tokens: int
    best_val_loss: float | None
    seconds: float


def save_state(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write the state whole or not at all; the state that was there before stays until then."""
    with atomic_folder(folder) as temporary:
        save_file(_owned(model.state_dict()), temporary / "model.safetensors")
        save_file(_moments(model, optimizer), temporary / "optimizer.safetensors")
        (temporary / "progress.json").write_text(json.dumps({"format": FORMAT, **asdict(progress)}))


def load_state(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> Progress:
    """Put weights and moments back, bit for bit. Raises CheckpointError for a missing, damaged or foreign state."""
    try:
        weights = load_file(folder / "model.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
        progress = json.loads((folder / "progress.json").read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"nothing to resume: {error.filename} is missing. Start without --resume.") from None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder} is damaged ({error}). Start a fresh run, or restore the folder.") from None
    if progress.pop("format", None) != FORMAT:
        raise CheckpointError(f"{folder} was written by another version of onehop. Start a fresh run.")
    own = model.state_dict()
    if own.keys() != weights.keys():
        raise CheckpointError.names(
            absent=own.keys() - weights.keys(), unclaimed=weights.keys() - own.keys(), where=str(folder)
        )
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise CheckpointError(
                f"{folder}: {name} has the shape {tuple(weights[name].shape)}, the recipe's model "
                f"{tuple(tensor.shape)}. Resume with the recipe that the run was started with."
            )
    model.load_state_dict(weights)
    _put_moments(model, optimizer, moments)
    return Progress(**progress)


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _moments(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors under the names of their parameters: 'layers.0…weight/exp_avg'."""
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}/{key}"] = value.detach().contiguous()
    return found


def _put_moments(model: Transformer, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        keys = [key for key in moments if key.rpartition("/")[0] == name]
        if keys:
            optimizer.state[parameter] = {
                key.rpartition("/")[2]: moments[key].to(parameter.device if moments[key].dim() else "cpu")
                for key in keys
            }
