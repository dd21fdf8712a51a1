"""What all kinds of attention share: from queries and keys to a mixture of values."""

import math
import zlib

import torch
from torch import Tensor, nn

from onehop.config.attention import AttentionConfig
from onehop.parts.keys import Keys
from onehop.parts.position import PositionScheme
from onehop.parts.score import score
from onehop.parts.score_plain import weights
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight
from onehop.parts.step import Step


class ScoredAttention(nn.Module):
    """Attention by scores and a softmax; each kind makes its queries, keys and values in its own way."""

    taps: tuple[str, ...] = ()  # what a listener may hear, in the order in which it is made

    def __init__(
        self,
        cfg: AttentionConfig,
        *,
        position: PositionScheme,
        change: nn.Module | None = None,
        dropout: float = 0.0,
        name: str = "attention",
    ):
        super().__init__()
        self.name, self.site = name, zlib.crc32(name.encode())
        self._shared = (position,)  # in a tuple: the stack owns the scheme, which several layers share
        self.change = change
        self.sinks = nn.Parameter(torch.zeros(cfg.n_heads)) if cfg.sinks else None
        self.sees = Sees(cfg.sees, cfg.window)
        self._bare = ScoreRule(cfg.scale or 1 / math.sqrt(cfg.d_head), cfg.softcap, dropout=dropout)

    def mix(self, q: Tensor, keys: Keys, step: Step, sight: Sight) -> Tensor:
        """The weighted mixture of values that each query (B, T, H, D) takes -> (B, T, H, D)."""
        rule = self.rule() if step.drop is None else self.rule().dropping(step.dropping(self.site))
        if step.listener is None:
            return score(q, keys, rule, sight, kernel=step.kernel)
        q = step.tap(f"{self.name}.q", q)
        if step.wants(f"{self.name}.weights"):
            step.tap(f"{self.name}.weights", weights(q, keys, rule, sight))  # (B, H, T, S)
        return step.tap(f"{self.name}.mixed", score(q, keys, rule, sight, kernel=step.kernel))

    @property
    def position(self) -> PositionScheme:
        """The position scheme, which the layers of a stack share."""
        return self._shared[0]

    def rule(self) -> ScoreRule:
        """What happens between q·k and the softmax here."""
        bias = self.position if self.position.biases else None
        if bias is None and self.change is None and self.sinks is None:
            return self._bare
        bare = self._bare
        return ScoreRule(bare.scale, bare.softcap, bias, self.change, self.sinks, bare.dropout)
