"""Which experts each token visits, with what weight, and how evenly the visits fall."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onehop.config.ffn import MoEConfig
from onehop.parts.constant import fresh_normal


@dataclass(frozen=True, eq=False)
class Routing:
    """What one router decided for tokens (B, T), and the losses that follow. Padding counts in none of the figures.

    The losses are those of one layer; training averages them over the layers (pooling all layers' tokens before the
    product, as some code does, is another rule).
    """

    logits: Tensor  # (B, T, E) float32
    scores: Tensor  # (B, T, E) softmax or sigmoid of the logits
    indices: Tensor  # (B, T, k) int64, chosen experts, the heaviest first
    weights: Tensor  # (B, T, k) what their outputs are multiplied by
    real: Tensor | None = None  # (B, T) bool, False for padding; None: all real
    balance_weight: float = 0.0
    z_weight: float = 0.0

    @property
    def probs(self) -> Tensor:
        """The scores as a distribution over the experts, (B, T, E)."""
        return self.scores / self.scores.sum(-1, keepdim=True)

    @property
    def load(self) -> Tensor:
        """Tokens that visit each expert, (E,) int64; they sum to k · tokens."""
        visits = torch.ones_like(self.indices) if self.real is None else self.real.unsqueeze(-1).expand_as(self.indices)
        counts = torch.zeros(self.logits.size(-1), dtype=torch.int64, device=self.indices.device)
        return counts.index_add_(0, self.indices.flatten(), visits.flatten().to(torch.int64))

    @property
    def balance_loss(self) -> Tensor:
        """E · Σ f·P: f the share of tokens that visit an expert, P its mean probability; k if even, E at worst.

        Fedus et al. 2021 (Switch), arXiv:2101.03961, equations 4-6, for k choices: the f sum to k. No gradient
        flows through f.
        """
        share = self.load.to(self.scores.dtype) / self._tokens()  # (E,)
        return self.probs.size(-1) * (share * self._mean(self.probs)).sum()

    @property
    def z_loss(self) -> Tensor:
        """Mean squared log-sum-exp of the logits. Zoph et al. 2022 (ST-MoE), arXiv:2202.08906, equation 5."""
        return self._mean(self.logits.logsumexp(-1, keepdim=True).square()).squeeze()

    @property
    def entropy(self) -> Tensor:
        """Mean entropy of a token's probabilities, in nats: 0 if one expert takes all, ln E if none is preferred."""
        return self._mean(torch.special.entr(self.probs).sum(-1, keepdim=True)).squeeze()

    @property
    def weighted_loss(self) -> Tensor:
        """What this layer adds to the training loss, before the mean over the layers."""
        loss = self.logits.new_zeros(())
        if self.balance_weight:
            loss = loss + self.balance_weight * self.balance_loss
        if self.z_weight:
            loss = loss + self.z_weight * self.z_loss
        return loss

    def _tokens(self) -> Tensor | int:
        return max(1, self.indices[..., 0].numel()) if self.real is None else self.real.sum().clamp(min=1)

    def _mean(self, x: Tensor) -> Tensor:
        """The mean over real tokens: (B, T, n) -> (n,)."""
        x = x if self.real is None else x.masked_fill(~self.real.unsqueeze(-1), 0.0)
        return x.sum((0, 1)) / self._tokens()


class Router(nn.Module):
    """A linear map to one logit per expert, and the choice of the k largest: (B, T, C) -> Routing.

    Shazeer et al. 2017, arXiv:1701.06538, section 2.1, without noise; sigmoid scores: DeepSeek-V3, arXiv:2412.19437,
    section 2.1.2. All in float32 (float64 for float64), whatever the model's dtype. With balance = "bias",
    `choice_bias` (E,) is added to the scores for the choice only, never to the weights.
    """

    choice_bias: Tensor | None

    def __init__(self, d_model: int, cfg: MoEConfig):
        super().__init__()
        self.cfg = cfg
        self.weight = nn.Parameter(torch.empty(cfg.n_experts, d_model))
        self.bias = nn.Parameter(torch.zeros(cfg.n_experts)) if cfg.router_bias else None
        self.loss_weights = {
            "balance_weight": cfg.balance_weight if cfg.balance == "loss" else 0.0,
            "z_weight": cfg.z_weight,
        }
        self.score = torch.sigmoid if cfg.gate == "sigmoid" else _softmax
        self.register_buffer("choice_bias", torch.zeros(cfg.n_experts) if cfg.balance == "bias" else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh weights, and no preference."""
        fresh_normal(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.fill_buffers()

    def fill_buffers(self) -> None:
        """Start without a preference."""
        if self.choice_bias is not None:
            self.choice_bias.zero_()

    def forward(self, x: Tensor, *, real: Tensor | None = None) -> Routing:
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):  # meta has none
            bias = None if self.bias is None else self.bias.to(exact)
            logits = F.linear(x.to(exact), self.weight.to(exact), bias)  # (B, T, E)
        scores = self.score(logits)  # (B, T, E)
        choice = scores if self.choice_bias is None else scores + self.choice_bias  # (B, T, E)
        if self.cfg.n_groups > 1:
            choice = self.within_groups(choice)  # (B, T, E)
        indices = choice.topk(self.cfg.n_active).indices  # (B, T, k)
        weights = scores.gather(-1, indices)  # (B, T, k)
        if self.cfg.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # 1e-20: sigmoids may all be 0
        return Routing(logits, scores, indices, weights * self.cfg.routed_scale, real, **self.loss_weights)

    def within_groups(self, choice: Tensor) -> Tensor:
        """What experts are chosen by, (B, T, E), with -inf outside each token's best n_active_groups groups.

        By the best expert: arXiv:2405.04434, section 2.2.2; by the best two: arXiv:2412.19437, section 2.1.2.
        """
        grouped = choice.unflatten(-1, (self.cfg.n_groups, -1))  # (B, T, G, E/G)
        group = grouped.amax(-1) if self.cfg.group_score == "best" else grouped.topk(2).values.sum(-1)  # (B, T, G)
        best = group.topk(self.cfg.n_active_groups).indices  # (B, T, n_active_groups)
        closed = torch.ones_like(group, dtype=torch.bool).scatter(-1, best, False)  # (B, T, G)
        return grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).flatten(-2)  # (B, T, E)

    @torch.no_grad()
    def update_bias(self, load: Tensor) -> None:
        """Raise the bias of experts with less than the mean load (E,), lower that of those with more, by balance_rate.

        Wang et al. 2024, arXiv:2408.15664, algorithm 1. To be called once after each optimiser step.
        """
        if self.choice_bias is not None:
            load = load.to(self.choice_bias.dtype)
            self.choice_bias += self.cfg.balance_rate * torch.sign(load.mean() - load)

    def extra_repr(self) -> str:
        return f"{self.cfg.n_active} of {self.cfg.n_experts}, {self.cfg.gate}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        """Move, but keep `choice_bias` in float32: bf16 would lose its steps of 0.001."""
        kept: Any = self.choice_bias
        super()._apply(fn, recurse)
        if self.choice_bias is not None and self.choice_bias.dtype != kept.dtype:
            moved = torch.empty_like(self.choice_bias, dtype=kept.dtype)
            self.choice_bias = moved if kept.is_meta else moved.copy_(kept)
        return self


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)
