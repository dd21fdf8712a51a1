"""Attention: every token looks at what it may see, weighs it, and takes the mixture."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onehop.base.choices import Choices
from onehop.config.attention import AttentionConfig
from onehop.config.norm import LayerNormConfig, RMSNormConfig
from onehop.parts.cache import CacheSpec, LayerCache
from onehop.parts.keys import Keys
from onehop.parts.linear import Linear, SideBySide
from onehop.parts.norm import NORMS, NormOfHeads
from onehop.parts.places import Places
from onehop.parts.position import PositionScheme
from onehop.parts.router import Routing
from onehop.parts.score import score
from onehop.parts.score_plain import weights
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight
from onehop.parts.step import Step


@dataclass(frozen=True, eq=False)
class Memory:
    """What an encoder hands to the decoder: hidden states (B, S, C), the places they stand at, and its own routing."""

    hidden: Tensor
    places: Places
    routing: Sequence[Routing | None] = ()


class Heads(nn.Module):
    """A projection (B, T, H·D) as heads (B, T, H, D), normalised head by head, all together, or not at all.

    Normalised by itself a head shares its weights with the others, or has its own.
    """

    def __init__(self, n_heads: int, cfg: AttentionConfig):
        super().__init__()
        self.shape = (n_heads, cfg.d_head)
        qk, all_heads = cfg.qk_norm, n_heads * cfg.d_head
        self.together = qk is not None and qk.span == "all"
        self.norm: nn.Module = nn.Identity()
        if qk is not None and qk.own_weights:
            assert isinstance(qk.norm, RMSNormConfig | LayerNormConfig), "a rule says so"
            self.norm = NormOfHeads(n_heads, cfg.d_head, qk.norm)
        elif qk is not None:
            self.norm = NORMS.get(qk.norm.kind)(all_heads if self.together else cfg.d_head, qk.norm)

    def forward(self, x: Tensor) -> Tensor:
        if self.together:
            return self.norm(x).unflatten(-1, self.shape)  # (B, T, H, D)
        return self.norm(x.unflatten(-1, self.shape))  # (B, T, H, D)


class GroupedQueryAttention(nn.Module):
    """Self-attention in which every key/value head serves n_heads / n_kv_heads query heads: (B, T, C) -> (B, T, C).

    n_kv_heads = n_heads is multi-head (Vaswani et al. 2017, arXiv:1706.03762, section 3.2), 1 is multi-query (Shazeer
    2019, arXiv:1911.02150), between them grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245, section 2.2).
    """

    taps = ("k", "v", "q", "weights", "mixed")  # what a listener may hear, in the order in which it is made

    def __init__(
        self,
        d_model: int,
        cfg: AttentionConfig,
        *,
        position: PositionScheme,
        change: nn.Module | None = None,
        dropout: float = 0.0,
        name: str = "attention",
    ):
        super().__init__()
        self.name, self.site = name, zlib.crc32(name.encode())
        self.wq = Linear(d_model, cfg.n_heads * cfg.d_head, bias=cfg.bias)
        self.wk = Linear(d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.bias)
        self.wv = Linear(d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.bias)
        self.wo = Linear(cfg.n_heads * cfg.d_head, d_model, bias=cfg.bias_out)
        self.qkv = SideBySide(self, "wq", "wk", "wv")
        self.q_heads, self.k_heads = Heads(cfg.n_heads, cfg), Heads(cfg.n_kv_heads, cfg)
        self.kv_shape = (cfg.n_kv_heads, cfg.d_head)
        self._shared = (position,)  # in a tuple: the stack owns the scheme, which several layers share
        self.change = change
        self.sinks = nn.Parameter(torch.zeros(cfg.n_heads)) if cfg.sinks else None
        self.sees = Sees(cfg.sees, cfg.window)
        self.clip = cfg.clip
        self.scale, self.softcap, self.dropout = cfg.scale or 1 / math.sqrt(cfg.d_head), cfg.softcap, dropout

    def forward(self, x: Tensor, step: Step, cache: LayerCache | None = None) -> Tensor:
        """Let the new tokens x (B, T, C) look at themselves and the past -> (B, T, C)."""
        q, k, v = self.qkv(x)
        if self.clip is not None:
            q, k, v = (y.clamp(-self.clip, self.clip) for y in (q, k, v))
        q, k = self.q_heads(q), self.k_heads(k)  # (B, T, H, D), (B, T, K, D)
        v = v.unflatten(-1, self.kv_shape)  # (B, T, K, D)
        q, k = self.position.turn(q, k, step)
        k, v = step.tap(f"{self.name}.k", k), step.tap(f"{self.name}.v", v)
        keys = Keys(k, v, step.places) if cache is None else cache.extend(k=k, v=v)  # (B, S, K, D) twice
        y = self.mix(q, keys, step, step.sight(self.sees, keys.places))  # (B, T, H, D)
        return self.wo(y.flatten(-2))  # (B, T, C)

    def mix(self, q: Tensor, keys: Keys, step: Step, sight: Sight) -> Tensor:
        """The weighted mixture of values that each query (B, T, H, D) takes -> (B, T, H, D)."""
        rule = self.rule().dropping(step.dropping(self.site))
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
        return ScoreRule(self.scale, self.softcap, bias, self.change, self.sinks, self.dropout)

    def cache_spec(self) -> CacheSpec:
        """What this layer keeps per token."""
        return CacheSpec({"k": self.kv_shape, "v": self.kv_shape}, self.sees.window)


class CrossAttention(GroupedQueryAttention):
    """Attention of the decoder's tokens over the encoder's output, read once (arXiv:1706.03762, section 3.2.3)."""

    def __init__(self, d_model: int, cfg: AttentionConfig, *, dropout: float = 0.0, name: str = "cross"):
        super().__init__(d_model, cfg, position=PositionScheme(), dropout=dropout, name=name)
        self.qkv = SideBySide(self, "wk", "wv")  # the queries come from elsewhere

    def forward(self, x: Tensor, step: Step, cache: LayerCache | None = None, memory: Memory | None = None) -> Tensor:
        """Let x (B, T, C) look at memory (B, S, C), or at the keys that an earlier step made of it -> (B, T, C)."""
        q = self.wq(x)
        q = self.q_heads(q if self.clip is None else q.clamp(-self.clip, self.clip))  # (B, T, H, D)
        keys = cache.cross if cache is not None and cache.cross is not None else self.read(memory, step)
        if cache is not None:
            cache.cross = keys
        y = self.mix(q, keys, step, step.sight(self.sees, keys.places))  # (B, T, H, D)
        return self.wo(y.flatten(-2))  # (B, T, C)

    def read(self, memory: Memory | None, step: Step) -> Keys:
        """Keys and values (B, S, K, D) of the encoder's output."""
        assert memory is not None, "the first step of a decoder needs the encoder's output"
        k, v = self.qkv(memory.hidden)
        if self.clip is not None:
            k, v = k.clamp(-self.clip, self.clip), v.clamp(-self.clip, self.clip)
        k = step.tap(f"{self.name}.k", self.k_heads(k))  # (B, S, K, D)
        v = step.tap(f"{self.name}.v", v.unflatten(-1, self.kv_shape))  # (B, S, K, D)
        return Keys(k, v, memory.places)


ATTENTIONS: Choices[type[GroupedQueryAttention]] = Choices("attention", {"grouped": GroupedQueryAttention})
