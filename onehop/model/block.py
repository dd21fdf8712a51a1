"""The residual block: attention mixes tokens, then the feed-forward layer works on each token by itself."""

from torch import Tensor, nn

from onehop.parts.attention import Memory
from onehop.parts.cache import LayerCache
from onehop.parts.dropout import dropout
from onehop.parts.moe import Routing
from onehop.parts.step import Step

SITES = {"attention": 0, "cross": 1, "ffn": 2}  # where dropout falls in a block


class Block(nn.Module):
    """The pre-norm block of the textbook: h = x + Attention(Norm(x)); y = h + FFN(Norm(h)). (B, T, C) -> (B, T, C).

    Pre-norm: Xiong et al. 2020, arXiv:2002.04745. With RMSNorm, RoPE and SwiGLU this is Llama's (arXiv:2302.13971).
    """

    def __init__(self, attention_norm: nn.Module, attention: nn.Module, ffn_norm: nn.Module, ffn: nn.Module):
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.ffn_norm, self.ffn = ffn_norm, ffn

    def forward(
        self, x: Tensor, step: Step, cache: LayerCache | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Routing | None]:
        h = x + self.attention(self.attention_norm(x), step, cache)  # (B, T, C)
        y, routing = self.ffn(self.ffn_norm(h), real=step.real())
        return h + y, routing


class PlacedBlock(Block):
    """The same block with its norms elsewhere, with cross-attention, dropout or a scaled residual.

    post-norm: norm outside the sum (arXiv:1706.03762, section 5.4); sandwich: also inside it (Ding et al. 2021,
    arXiv:2105.13290, section 3.2). Absent norms are Identity.
    """

    def __init__(
        self,
        *parts: nn.Module,
        norms_inside: nn.ModuleDict,
        norms_outside: nn.ModuleDict,
        cross: tuple[nn.Module, nn.Module] | None = None,
        scale: float = 1.0,
        rate: float = 0.0,
        site: int = 0,
    ):
        super().__init__(*parts)
        self.inside, self.outside = norms_inside, norms_outside
        self.cross_norm: nn.Module | None = None if cross is None else cross[0]
        self.cross: nn.Module | None = None if cross is None else cross[1]
        self.scale, self.rate, self.site = scale, rate, site

    def forward(
        self, x: Tensor, step: Step, cache: LayerCache | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Routing | None]:
        x = self.add(x, self.attention(self.attention_norm(x), step, cache), step, "attention")
        if self.cross is not None and self.cross_norm is not None:
            x = self.add(x, self.cross(self.cross_norm(x), step, cache, memory), step, "cross")
        y, routing = self.ffn(self.ffn_norm(x), real=step.real())
        return self.add(x, y, step, "ffn"), routing

    def add(self, x: Tensor, y: Tensor, step: Step, sublayer: str) -> Tensor:
        """The residual sum around one sublayer's output y, with whatever norm, scale and dropout belong there."""
        y = dropout(self.inside[sublayer](y), self.rate, step.dropping(self.site, SITES[sublayer]))
        return self.outside[sublayer](x + (y if self.scale == 1.0 else y * self.scale))


class ParallelBlock(PlacedBlock):
    """Attention and feed-forward side by side: y = x + Attention(Norm(x)) + FFN(Norm'(x)).

    GPT-J (Wang and Komatsuzaki 2021) and PaLM (arXiv:2204.02311, section 2) share one norm, GPT-NeoX (arXiv:2204.06745,
    section 2.1) has two. With one norm `ffn_norm` is Identity and reads the attention's normalised input.
    """

    def __init__(self, *parts: nn.Module, one_norm: bool, **placed: object):
        super().__init__(*parts, **placed)  # type: ignore[arg-type]
        self.one_norm = one_norm

    def forward(
        self, x: Tensor, step: Step, cache: LayerCache | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Routing | None]:
        n = self.attention_norm(x)  # (B, T, C)
        h = self.add(x, self.attention(n, step, cache), step, "attention")
        y, routing = self.ffn(self.ffn_norm(n if self.one_norm else x), real=step.real())
        return self.add(h, y, step, "ffn"), routing
