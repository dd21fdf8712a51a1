"""Muon: the momentum of a matrix, made orthogonal, is its step (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

`torch.optim.Muon` is the plain twin, and a test holds them together. It takes no stacks of matrices (experts), and
orthogonalises in bfloat16 on every machine, which a processor without bfloat16 does at a tenth of float32's speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from onehop.cost.muon import NEWTON_SCHULZ, at_once

# Of the quintic x -> a·x + b·x³ + c·x⁵ that moves singular values towards 1; it is applied NEWTON_SCHULZ times.
QUINTIC = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95  # Nesterov's
EPS = 1e-7
SCALE = 0.2  # what AdamW's steps have as their root mean square (Liu et al. 2025, arXiv:2502.16982, section 2.2)


@dataclass(frozen=True, eq=False)
class Matrix:
    """A weight (d_out, d_in) or one of a stack of them, its gradient and its momentum."""

    weight: Tensor
    gradient: Tensor
    momentum: Tensor
    in_stack: bool

    @property
    def kind(self) -> tuple[Any, ...]:
        """What matrices share that are moved together: sides, the longer one last, and where they are."""
        return (*sorted(self.weight.shape), self.weight.device, self.weight.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for matrices (d_out, d_in) and for stacks of them (E, d_out, d_in), whose matrices have steps of their own.

    Steps are scaled to AdamW's size, so that one learning rate serves both. In a stack a matrix whose gradient is zero,
    an expert that no token visited, only decays: its momentum fades, but a step has one size whatever the momentum's.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, dtype: torch.dtype):
        """dtype: of the products. Raises ValueError for what is neither a matrix nor a stack of them."""
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        for p in chain.from_iterable(group["params"] for group in self.param_groups):
            if p.dim() not in (2, 3) or not p.numel():
                raise ValueError(f"Muon moves matrices and stacks of them, not a tensor of shape {tuple(p.shape)}")
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all matrices that have a gradient, small ones of one shape together."""
        for group in self.param_groups:
            kinds: dict[tuple[Any, ...], list[Matrix]] = {}
            for p in group["params"]:
                for matrix in self._matrices(p) if p.grad is not None else ():
                    kinds.setdefault(matrix.kind, []).append(matrix)
            for (short, long, *_), found in kinds.items():
                n = at_once(short, long)
                for i in range(0, len(found), n):
                    self._move(found[i : i + n], group["lr"], group["weight_decay"])

    def _matrices(self, p: Tensor) -> Iterator[Matrix]:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        assert p.grad is not None, "asked before"
        if p.dim() == 2:
            yield Matrix(p, p.grad, state["momentum_buffer"], in_stack=False)
        else:
            for each in zip(p, p.grad, state["momentum_buffer"], strict=True):
                yield Matrix(*each, in_stack=True)

    def _move(self, found: Sequence[Matrix], lr: float, weight_decay: float) -> None:
        weights, gradients = [m.weight for m in found], [m.gradient for m in found]
        momenta = [m.momentum for m in found]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        update = orthogonal(_upright(torch._foreach_lerp(gradients, momenta, MOMENTUM)), self.dtype)
        for i, m in enumerate(found):
            if m.in_stack:
                update[i] *= m.gradient.any()
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        turned = [u.mT if _is_tall(w) else u for u, w in zip(update, weights, strict=True)]
        torch._foreach_add_(weights, turned, alpha=-lr * SCALE * max(weights[0].shape) ** 0.5)


def _is_tall(matrix: Tensor) -> bool:
    return matrix.size(0) > matrix.size(1)


def _upright(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices of the same sides -> (n, short, long), each turned where its rows are the longer side."""
    return torch.stack([m.mT if _is_tall(m) else m for m in matrices])


def orthogonal(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Near U·Vᵀ of the singular value decomposition U·S·Vᵀ of each matrix (n, short, long), by Newton-Schulz rounds."""
    a, b, c = QUINTIC
    x = x.to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(NEWTON_SCHULZ):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
