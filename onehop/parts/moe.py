"""Mixture of experts: many feed-forward layers, of which each token visits a few."""

import torch
from torch import Tensor, nn

from onehop.config.ffn import GateConfig, GatedConfig, MoEConfig, PlainConfig
from onehop.parts.activation import activation, gate
from onehop.parts.constant import fresh_normal
from onehop.parts.dense import GatedFFN, PlainFFN
from onehop.parts.grouped import Groups, grouped_linear
from onehop.parts.linear import Linear
from onehop.parts.router import Router, Routing

__all__ = ["MoE", "Routing"]


class MoE(nn.Module):
    """y = Σ weight · expert(x) over the chosen experts, plus the shared expert: (B, T, C) -> (B, T, C), Routing.

    Shazeer et al. 2017, arXiv:1701.06538, equation 1; shared expert: Dai et al. 2024, arXiv:2401.06066, section 3.2;
    its gate: the release of Qwen1.5-MoE (2024), of the form of arXiv:2407.10671, section 2.2.2.
    Tokens are sorted by expert, so the work grows with n_active; none is dropped. Expert weights are stacked: w1 and w3
    (E, F, C), w2 (E, C, F).
    """

    def __init__(self, d_model: int, cfg: MoEConfig):
        super().__init__()
        e, f = cfg.n_experts, cfg.d_ff
        self.router = Router(d_model, cfg)
        gated = cfg.expert == "gated"
        self.w1 = nn.Parameter(torch.empty(e, f, d_model))
        self.w3 = nn.Parameter(torch.empty(e, f, d_model)) if gated else None
        self.w2 = nn.Parameter(torch.empty(e, d_model, f))
        self.b1 = nn.Parameter(torch.empty(e, f)) if cfg.bias else None
        self.b3 = nn.Parameter(torch.empty(e, f)) if cfg.bias and gated else None
        self.b2 = nn.Parameter(torch.empty(e, d_model)) if cfg.bias else None
        self.act, self.gate = activation(cfg), gate(cfg)
        self.shared = None if cfg.d_ff_shared is None else _shared(d_model, cfg.d_ff_shared, cfg)
        self.shared_gate = Linear(d_model, 1) if cfg.shared_gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh expert weights; biases 0."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("w"):
                fresh_normal(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, *, real: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        routing = self.router(x, real=real)
        y = self.routed(x.flatten(0, -2), routing.indices.flatten(0, -2), routing.weights.flatten(0, -2)).view_as(x)
        if self.shared is not None:
            shared = self.shared(x)[0]
            y = y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return y, routing

    def routed(self, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Σ over k of weights (N, k) · experts `indices` (N, k) of x (N, C) -> (N, C), summed in the weights' dtype."""
        groups = Groups.of(indices, self.w1.size(0))
        y = self.experts(x[groups.order // indices.size(1)], groups.ends)  # (M, C), sorted by expert
        y = y[groups.back()].view(*indices.shape, y.size(-1))  # (N, k, C)
        return (y * weights.unsqueeze(-1)).sum(1).to(x.dtype)  # (N, C)

    def experts(self, x: Tensor, ends: Tensor) -> Tensor:
        """Each expert on its run of rows: (M, C) -> (M, C)."""
        h = grouped_linear(x, self.w1, ends, self.b1)  # (M, F)
        h = self.act(h) if self.w3 is None else self.gate(h, grouped_linear(x, self.w3, ends, self.b3))  # (M, F)
        return grouped_linear(h, self.w2, ends, self.b2)  # (M, C)

    def update_bias(self, load: Tensor) -> None:
        """Move the router's bias after an optimiser step that saw `load` (E,) tokens per expert (balance = "bias")."""
        self.router.update_bias(load)


def _shared(d_model: int, d_ff: int, cfg: MoEConfig) -> nn.Module:
    """One expert of width `d_ff`, otherwise of the routed experts' form."""
    if cfg.expert == "plain":
        shared = PlainFFN(d_model, PlainConfig(d_ff=d_ff, activation=cfg.activation, bias=cfg.bias))
        shared.act = activation(cfg)
        return shared
    same = {field: getattr(cfg, field) for field in ("activation", "bias", *GateConfig.model_fields) if field != "kind"}
    return GatedFFN(d_model, GatedConfig(d_ff=d_ff, **same))
