"""Feed-forward layers: what each token thinks over by itself, after attention has told it what it needed.

Every feed-forward layer is called as `ffn(x, real=…)` and returns its output with the Routing of its tokens, if
it has one. These here treat all tokens alike and have no use for `real` (B, T), which tells tokens from padding.
"""

from torch import Tensor, nn

from onehop.config.ffn import GatedConfig, PlainConfig
from onehop.parts.activation import ACTIVATIONS, gate
from onehop.parts.linear import Linear, SideBySide
from onehop.parts.router import Routing


class PlainFFN(nn.Module):
    """W2 · act(W1 · x): (B, T, C) -> (B, T, C). Vaswani et al. 2017, arXiv:1706.03762, equation 2."""

    def __init__(self, d_model: int, cfg: PlainConfig):
        super().__init__()
        self.w1 = Linear(d_model, cfg.d_ff, bias=cfg.bias)
        self.w2 = Linear(cfg.d_ff, d_model, bias=cfg.bias)
        self.act = ACTIVATIONS.get(cfg.activation)

    def forward(self, x: Tensor, *, real: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        return self.w2(self.act(self.w1(x))), None


class GatedFFN(nn.Module):
    """W2 · (act(W1 · x) ⊙ W3 · x): (B, T, C) -> (B, T, C); SwiGLU with silu.

    Shazeer 2020, arXiv:2002.05202, equation 6.
    """

    def __init__(self, d_model: int, cfg: GatedConfig):
        super().__init__()
        self.w1 = Linear(d_model, cfg.d_ff, bias=cfg.bias)
        self.w3 = Linear(d_model, cfg.d_ff, bias=cfg.bias)
        self.w2 = Linear(cfg.d_ff, d_model, bias=cfg.bias)
        self.w1_w3 = SideBySide(self, "w1", "w3")
        self.gate = gate(cfg)

    def forward(self, x: Tensor, *, real: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        return self.w2(self.gate(*self.w1_w3(x))), None
