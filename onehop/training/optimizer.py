"""What moves the weights: AdamW, or Muon for the hidden matrices and AdamW for the rest.

Weight decay falls on matrices, never on norms, biases and tables of scalars.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from onehop.config.recipe import TrainConfig


class Optimizers:
    """Several optimizers over different parameters, used like one. They share one `state`, keyed by parameter."""

    def __init__(self, *members: torch.optim.Optimizer):
        self.members = members
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        for member in members:
            member.state = self.state
        self.param_groups = [group for member in members for group in member.param_groups]

    def step(self) -> None:
        """Move all parameters."""
        for member in self.members:
            member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)


def make_optimizer(model: nn.Module, cfg: TrainConfig) -> Optimizers:
    """The optimizer that `train.optimizer` names, over the parameters that need gradients."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in named if cfg.optimizer == "muon" and _is_hidden(name, p)]
    taken = {id(p) for p in hidden}
    rest = [p for _, p in named if id(p) not in taken]
    return Optimizers(*([muon(hidden, cfg)] if hidden else []), adamw(rest, cfg))


def adamw(parameters: list[nn.Parameter], cfg: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2) in PyTorch's fused form."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)


def muon(parameters: list[nn.Parameter], cfg: TrainConfig) -> torch.optim.Muon:
    """Muon (Jordan et al. 2024), its steps scaled to AdamW's size, so that one learning rate serves both.

    The scale is that of Liu et al. 2025, arXiv:2502.16982, section 2.2.
    """
    return torch.optim.Muon(parameters, lr=cfg.lr, weight_decay=cfg.weight_decay, adjust_lr_fn="match_rms_adamw")


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    """Whether this is a matrix between hidden states: not of the embedding, the head, or a table of experts."""
    return parameter.dim() == 2 and ".layers." in f".{name}" and min(parameter.shape) > 1
