"""What moves the weights: AdamW, or Muon for the hidden matrices and AdamW for the rest.

Weight decay falls on the roles that `train.weight_decay_on` names: as usual on all that multiplies (matrices,
embeddings, head), not on norms and biases, whose sizes are few and carry the scale of what they act on.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onehop.config.recipe import Role, TrainConfig
from onehop.training.muon import Muon
from onehop.training.roles import is_hidden, roles

Named = tuple[str, Role, nn.Parameter]


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

    def summary(self) -> list[dict[str, Any]]:
        """The groups in numbers: which optimizer, roles, tensors and weights, what decay and share of the rate."""
        return [
            {
                "optimizer": "muon" if isinstance(member, Muon) else "adamw",
                "roles": group["roles"],
                "tensors": len(group["params"]),
                "weights": sum(p.numel() for p in group["params"]),
                "weight_decay": group["weight_decay"],
                "lr_share": group["lr_share"],
            }
            for member in self.members
            for group in member.param_groups
            if group["params"]
        ]


def make_optimizer(
    model: nn.Module, cfg: TrainConfig, *, width: int | None = None, precision: torch.dtype = torch.float32
) -> Optimizers:
    """The optimizer that `train.optimizer` names, over the parameters that need gradients.

    width: the model's d_model, from which `train.width_transfer` takes each role's share of the rate. precision: of
    the run's products, and of Muon's.
    """
    by_name = roles(model)
    named = [(name, by_name[name], p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [one for one in named if cfg.optimizer == "muon" and is_hidden(*one)]
    taken = {name for name, _, _ in hidden}
    share = 1.0 if cfg.width_transfer is None or width is None else cfg.width_transfer / width
    rest = adamw([one for one in named if one[0] not in taken], cfg, share=share)
    return Optimizers(*([muon(hidden, cfg, precision)] if hidden else []), rest)


def adamw(named: Sequence[Named], cfg: TrainConfig, *, share: float = 1.0) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2) in PyTorch's fused form.

    `share` of the rate for matrices, see `width.py`. Their decay is divided by it: what a step takes off a weight,
    rate · decay, stays.
    """
    groups = []
    for decays in (True, False):
        for only_matrices in (True, False) if share != 1.0 else (None,):
            found = [
                (role, p)
                for _, role, p in named
                if (role in cfg.weight_decay_on) == decays and only_matrices in (None, role == "matrices")
            ]
            own = share if only_matrices else 1.0
            decay = cfg.weight_decay / own if decays else 0.0
            groups.append(_group(found, decay=decay, share=own))
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)


def muon(named: Sequence[Named], cfg: TrainConfig, dtype: torch.dtype) -> Muon:
    """Muon for the hidden matrices. It multiplies in bfloat16 where the run does, else in float32."""
    decay = cfg.weight_decay if "matrices" in cfg.weight_decay_on else 0.0
    group = _group([(role, p) for _, role, p in named], decay=decay, share=1.0)
    return Muon([group], lr=cfg.lr, dtype=dtype if dtype == torch.bfloat16 else torch.float32)


def _group(found: Sequence[tuple[Role, nn.Parameter]], *, decay: float, share: float) -> dict[str, Any]:
    names = sorted({role for role, _ in found})
    return {"params": [p for _, p in found], "weight_decay": decay, "lr_share": share, "roles": names}
