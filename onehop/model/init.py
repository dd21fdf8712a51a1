"""Fresh weights by role: what writes into the residual stream is scaled down with depth.

Normal with `init_std`; output projections with init_std / sqrt(number of residual sums), so that the stream's variance
does not grow with depth (Radford et al. 2019, GPT-2, section 2.3).
"""

import math

import torch
from torch import Generator, Tensor, nn

from onehop.config.model import ModelConfig
from onehop.model.transformer import Transformer

RESIDUAL = ("wo", "w2")  # names of the maps that write into the residual stream


@torch.no_grad()
def initialise(model: Transformer, cfg: ModelConfig, generator: Generator) -> None:
    """Fill every parameter of `model` in the order of its names, from a generator on the CPU; buffers start at 0."""
    depth = {"": _residual_sums(model), "encoder.": _residual_sums(model.encoder)}
    for name, parameter in model.named_parameters():
        sums = depth["encoder." if name.startswith("encoder.") else ""]
        residual_std = cfg.init_std / math.sqrt(sums)
        _fill(model, name, parameter, std=cfg.init_std, residual_std=residual_std, generator=generator)
    for buffer in model.buffers():
        buffer.zero_()


def _fill(
    model: nn.Module, name: str, parameter: Tensor, *, std: float, residual_std: float, generator: Generator
) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    if hasattr(owner, "offset"):  # a norm: offset + weight starts at 1, its bias at 0
        parameter.fill_(1.0 - owner.offset if leaf == "weight" else 0.0)  # type: ignore[operator]
    elif leaf == "sinks" or parameter.dim() == 1 or leaf.startswith("b"):
        parameter.zero_()
    else:
        writes = path.rpartition(".")[2] in RESIDUAL or leaf in RESIDUAL
        values = torch.empty(parameter.shape, dtype=torch.float32)
        values.normal_(0.0, residual_std if writes else std, generator=generator)
        parameter.copy_(values)


def _residual_sums(stack: nn.Module | None) -> int:
    """How many sublayers add to the residual stream."""
    if stack is None:
        return 1
    return sum(2 + (getattr(layer, "cross", None) is not None) for layer in stack.layers)  # type: ignore[union-attr]
