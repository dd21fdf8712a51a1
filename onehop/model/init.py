"""Fresh weights by role: what writes into the residual stream is scaled down with depth.

Normal with `init_std`; output projections with init_std / sqrt(number of residual sums), so that all sublayers together
add as much variance to the stream as one would, however deep the model (Radford et al. 2019, GPT-2, section 2.3).
"""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Generator, Tensor, nn

from onehop.config.model import ModelConfig
from onehop.model.transformer import Transformer
from onehop.parts.norm import LayerNorm, RMSNorm

RESIDUAL = ("wo", "w2")  # names of the maps that write into the residual stream
BIASES = ("bias", "b1", "b2", "b3", "sinks")


@torch.no_grad()
def initialise(model: Transformer, cfg: ModelConfig, generator: Generator, *, empty: Collection[str]) -> None:
    """Fill every parameter of `model` in the order of its names, from a generator on the CPU; buffers start at 0.

    `empty` names the tensors that have no values yet. The others are parts of a user's own, filled by their
    constructors; only onehop's own layers in them are filled here.
    """
    sums = {"": _residual_sums(model), "encoder": _residual_sums(model.encoder)}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        if name not in empty and not type(owner).__module__.startswith("onehop."):
            continue
        depth = sums["encoder" if name.startswith("encoder.") else ""]
        writes = path.rpartition(".")[2] in RESIDUAL or leaf in RESIDUAL
        std = cfg.init_std / math.sqrt(depth) if writes else cfg.init_std
        _fill(owner, leaf, parameter, std=std, generator=generator)
    for name, buffer in model.named_buffers():
        if name in empty:
            buffer.zero_()


def _fill(owner: nn.Module, leaf: str, parameter: Tensor, *, std: float, generator: Generator) -> None:
    if isinstance(owner, (RMSNorm, LayerNorm)):  # offset + weight starts at 1, the bias at 0
        parameter.fill_(1.0 - owner.offset if leaf == "weight" else 0.0)
    elif leaf in BIASES:
        parameter.zero_()
    else:
        values = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.copy_(values.normal_(0.0, std, generator=generator))


def _residual_sums(stack: nn.Module | None) -> int:
    """How many sublayers add to the residual stream."""
    if stack is None:
        return 1
    layers: Any = stack.layers
    return sum(2 if getattr(layer, "cross", None) is None else 3 for layer in layers)
