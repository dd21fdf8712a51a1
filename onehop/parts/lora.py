"""Low-rank adapters: a frozen linear map learns by a thin product beside it. Hu et al. 2021, arXiv:2106.09685."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from onehop.parts.linear import Linear


@dataclass(frozen=True, eq=False)
class LowRank:
    """One adapter, scale · up · down: `down` (rank, d_in), `up` (d_out, rank). The paper's A and B, and its α / r."""

    down: Tensor
    up: Tensor
    scale: float


class Adapted(nn.Module):
    """A linear map and its adapter, y = W · x + b + scale · up · (down · x): (…, d_in) -> (…, d_out). Section 4.1."""

    def __init__(self, base: Linear, adapter: LowRank):
        super().__init__()
        self.base, self.scale = base, adapter.scale
        self.down = Linear(base.in_features, adapter.down.size(0)).to(base.weight)
        self.up = Linear(adapter.down.size(0), base.out_features).to(base.weight)
        with torch.no_grad():
            self.down.weight.copy_(adapter.down)
            self.up.weight.copy_(adapter.up)

    @property
    def out_features(self) -> int:
        """Width of what comes out, as a Linear tells it."""
        return self.base.out_features

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y + self.scale * self.up(self.down(x))

    def adapter(self) -> LowRank:
        """The adapter as it is now."""
        return LowRank(self.down.weight.detach(), self.up.weight.detach(), self.scale)


@torch.no_grad()
def added(weight: Tensor, adapter: LowRank) -> Tensor:
    """W + scale · up · down (d_out, d_in), added in float32 and rounded once."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    down, up = (t.to(weight.device, wide) for t in (adapter.down, adapter.up))
    return (weight.to(wide) + adapter.scale * (up @ down)).to(weight.dtype)


def fresh(base: Linear, *, rank: int, alpha: float, generator: Generator) -> LowRank:
    """An adapter that changes nothing yet: `up` is zero, `down` uniform within ±1/√d_in, as in the authors' code."""
    bound = 1 / math.sqrt(base.in_features)
    down = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
    return LowRank(down, torch.zeros(base.out_features, rank), alpha / rank)


def adapt(model: nn.Module, adapters: Mapping[str, LowRank]) -> None:
    """Put an adapter beside each linear map that is named, and freeze everything else."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, adapter in adapters.items():
        owner, _, leaf = name.rpartition(".")
        base = model.get_submodule(name)
        assert isinstance(base, Linear), f"{name} is no linear map"
        setattr(model.get_submodule(owner), leaf, Adapted(base, adapter))


@torch.no_grad()
def merge(model: nn.Module, adapters: Mapping[str, LowRank]) -> None:
    """Add the adapters to the maps that they belong to: the model is plain, and as quick as before."""
    for name, adapter in adapters.items():
        weight = model.get_submodule(name).weight
        assert isinstance(weight, Tensor), f"{name} is no linear map"
        weight.copy_(added(weight, adapter))


def adapters_of(model: nn.Module) -> dict[str, LowRank]:
    """The adapters below `model` by the names of the maps that they stand beside."""
    return {name: m.adapter() for name, m in model.named_modules() if isinstance(m, Adapted)}


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the same model without adapters: each is added to the map that it stood beside."""
    weights = dict(model.state_dict())
    for name, m in model.named_modules():
        if isinstance(m, Adapted):
            for end in ("down.weight", "up.weight"):
                del weights[f"{name}.{end}"]
            del weights[f"{name}.base.weight"]
            weights[f"{name}.weight"] = added(m.base.weight, m.adapter())
            if (bias := weights.pop(f"{name}.base.bias", None)) is not None:
                weights[f"{name}.bias"] = bias
    return weights
