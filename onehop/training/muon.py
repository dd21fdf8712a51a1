"""Muon: the momentum of a matrix, made orthogonal, is its step (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

`torch.optim.Muon` is the plain twin, and a test holds them together. It takes no stacks of matrices (experts), and
orthogonalises in bfloat16 on every machine, which a processor without bfloat16 does at a tenth of float32's speed.
"""

from typing import Any

import torch
from torch import Tensor

from onehop.cost.roofline import NEWTON_SCHULZ

# Of the quintic x -> a·x + b·x³ + c·x⁵ that moves singular values towards 1; it is applied NEWTON_SCHULZ times.
QUINTIC = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95  # Nesterov's
EPS = 1e-7
SCALE = 0.2  # what AdamW's steps have as their root mean square (Liu et al. 2025, arXiv:2502.16982, section 2.2)


class Muon(torch.optim.Optimizer):
    """Muon for matrices (d_out, d_in) and for stacks of them (E, d_out, d_in), one matrix after another.

    Steps are scaled to AdamW's size, so that one learning rate serves both. In a stack a matrix whose gradient is zero,
    an expert that no token visited, only decays: its momentum fades, but a step has one size whatever the momentum's.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, dtype: torch.dtype):
        """dtype: of the products."""
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all matrices that have a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                stacks = [x if x.dim() == 3 else x.unsqueeze(0) for x in (p, p.grad, state["momentum_buffer"])]
                for matrix, gradient, momentum in zip(*stacks, strict=True):
                    momentum.lerp_(gradient, 1 - MOMENTUM)
                    update = orthogonal(gradient.lerp(momentum, MOMENTUM), self.dtype)
                    if p.dim() == 3:
                        update = update * gradient.any()
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(update, alpha=-group["lr"] * SCALE * max(matrix.shape) ** 0.5)


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Near U·Vᵀ of the matrix's singular value decomposition U·S·Vᵀ, by Newton-Schulz rounds in `dtype`."""
    a, b, c = QUINTIC
    x = matrix.to(dtype)
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=EPS)
    for _ in range(NEWTON_SCHULZ):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
