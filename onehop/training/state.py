"""What a run needs to go on as if nothing had happened: weights, moments and counts, all of one moment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from onehop.base.errors import CheckpointError
from onehop.formats.safetensors_header import read_header
from onehop.model.transformer import Transformer
from onehop.parts.lora import adapters_of, merged_weights
from onehop.training.optimizer import Optimizers
from onehop.weights.safetensors_files import TensorFiles

MOMENTS, BESIDE = "optimizer/", "beside/"


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Order of the rows, dropout and learning rate follow from these and the recipe's seed.

    tokens: targets learned from. batches: micro-batches read. skipped: steps that moved nothing, their numbers not
    being finite, and in_a_row those at the end. seconds: spent in steps. best_step: where the best validation loss was.
    """

    step: int = 0
    tokens: int = 0
    batches: int = 0
    best_val_loss: float | None = None
    best_step: int | None = None
    seconds: float = 0.0
    skipped: int = 0
    in_a_row: int = 0


def weights_of(model: Transformer, *, copy: bool) -> dict[str, Tensor]:
    """The tensors of the model that a run saves, to which adapters are added.

    copy: in memory of their own, on the CPU, so that training may go on meanwhile.
    """
    return {name: taken(tensor, copy) for name, tensor in merged_weights(model).items()}


def beside_of(model: Transformer, *, copy: bool) -> dict[str, Tensor]:
    """Of a model with adapters, from whose sum they cannot be told again: all but what is frozen."""
    return {BESIDE + name: taken(tensor, copy) for name, tensor in _beside(model).items()}


def frozen_digest(model: nn.Module) -> str:
    """Hex digits that change with the parameters that stay as they are."""
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if not parameter.requires_grad:
            found.update(name.encode())
            found.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def moments_of(model: Transformer, optimizer: Optimizers, *, copy: bool) -> dict[str, Tensor]:
    """The optimizer's tensors under the names of their parameters: 'optimizer/layers.0…weight/exp_avg'."""
    found = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{MOMENTS}{name}/{key}"] = taken(value, copy)
    return found


def put_weights(model: Transformer, file: Path) -> None:
    """Fill the model from a file, one tensor at a time, bit for bit."""
    fill(model.state_dict(), file)


def put_beside(model: Transformer, file: Path) -> None:
    """Give a model with adapters back what `beside_of` took."""
    fill({BESIDE + name: tensor for name, tensor in _beside(model).items()}, file, prefix=BESIDE)


def put_moments(model: Transformer, optimizer: Optimizers, file: Path) -> None:
    """Give the optimizer its tensors back; they get memory of their own, aligned as torch does it."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    with TensorFiles(read_header(file), file) as found:
        for path in found.entries:
            if path.startswith(MOMENTS):
                name, _, key = path.removeprefix(MOMENTS).rpartition("/")
                parameter = parameters[name]
                optimizer.state[parameter][key] = found.read(path).to(parameter.device, copy=True)


def _beside(model: Transformer) -> dict[str, Tensor]:
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    own = model.state_dict() if adapters_of(model) else {}
    return {name: tensor for name, tensor in own.items() if name not in frozen}


@torch.no_grad()
def fill(own: Mapping[str, Tensor], file: Path, *, prefix: str = "") -> None:
    """Fill tensors from a file, which holds just these among the names that begin with `prefix`."""
    with TensorFiles(read_header(file), file) as found:
        there = {name for name in found.entries if name.startswith(prefix)}
        absent, unclaimed = own.keys() - there, there - own.keys()
        if absent or unclaimed:
            raise CheckpointError.names(absent=absent, unclaimed=unclaimed, where=str(file))
        for name, tensor in own.items():
            tensor.copy_(found.read(name))


def taken(tensor: Tensor, copy: bool) -> Tensor:
    """The tensor as a checkpoint keeps it; copy: in memory of its own, on the CPU."""
    return tensor.detach().to("cpu", copy=True) if copy else tensor.detach()
