"""AdamW over the model's parameters: weight decay on matrices, none on norms, biases and tables of scalars."""

import torch
from torch import nn

from onehop.config.recipe import TrainConfig


def adamw(model: nn.Module, cfg: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2) in PyTorch's fused form."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)
