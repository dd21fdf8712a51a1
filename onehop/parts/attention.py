"""Attention: every token looks at what it may see, weighs it, and takes the mixture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from onehop.base.choices import Choices
from onehop.config.attention import AttentionConfig
from onehop.config.norm import LayerNormConfig, RMSNormConfig
from onehop.parts.cache import CacheSpec, LayerCache
from onehop.parts.keys import Keys
from onehop.parts.latent import LatentAttention
from onehop.parts.linear import Linear, SideBySide
from onehop.parts.norm import NORMS, NormOfHeads
from onehop.parts.places import Places
from onehop.parts.position import PositionScheme
from onehop.parts.router import Routing
from onehop.parts.scored import ScoredAttention
from onehop.parts.step import Step


@dataclass(frozen=True, eq=False)
class Memory:
    """What an encoder hands to the decoder: hidden states (B, S, C), the places they stand at, and its own routing."""

    hidden: Tensor
    places: Places
    routing: Sequence[Routing | None] = ()


def cut(x: Tensor, limit: float | None) -> Tensor:
    """Numbers beyond ± limit become it; None: there is no limit."""
    return x if limit is None else x.clamp(-limit, limit)


class Heads(nn.Module):
    """A projection (B, T, H·D) as heads (B, T, H, D), normalised head by head, all together, or not at all.

    Normalised by itself a head shares its weights with the others, or has its own. Where numbers are cut off, it is
    before the norm or after it.
    """

    def __init__(self, n_heads: int, cfg: AttentionConfig):
        super().__init__()
        self.shape = (n_heads, cfg.d_head)
        self.as_they_are = cfg.qk_norm is None and cfg.clip is None
        self.cut_first = None if cfg.clip_after_norm else cfg.clip
        self.cut_last = cfg.clip if cfg.clip_after_norm else None
        qk, all_heads = cfg.qk_norm, n_heads * cfg.d_head
        self.together = qk is not None and qk.span == "all"
        self.norm: nn.Module = nn.Identity()
        if qk is not None and qk.own_weights:
            assert isinstance(qk.norm, RMSNormConfig | LayerNormConfig), "a rule says so"
            self.norm = NormOfHeads(n_heads, cfg.d_head, qk.norm)
        elif qk is not None:
            self.norm = NORMS.get(qk.norm.kind)(all_heads if self.together else cfg.d_head, qk.norm)

    def forward(self, x: Tensor) -> Tensor:
        if self.as_they_are:
            return x.unflatten(-1, self.shape)  # (B, T, H, D)
        x = cut(x, self.cut_first)
        if self.together:
            return cut(self.norm(x), self.cut_last).unflatten(-1, self.shape)  # (B, T, H, D)
        return cut(self.norm(x.unflatten(-1, self.shape)), self.cut_last)  # (B, T, H, D)


class GroupedQueryAttention(ScoredAttention):
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
        super().__init__(cfg, position=position, change=change, dropout=dropout, name=name)
        self.wq = Linear(d_model, cfg.n_heads * cfg.d_head, bias=cfg.bias)
        self.wk = Linear(d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.bias)
        self.wv = Linear(d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.bias)
        self.wo = Linear(cfg.n_heads * cfg.d_head, d_model, bias=cfg.bias_out)
        self.qkv = SideBySide(self, "wq", "wk", "wv")
        self.q_heads, self.k_heads = Heads(cfg.n_heads, cfg), Heads(cfg.n_kv_heads, cfg)
        self.kv_shape = (cfg.n_kv_heads, cfg.d_head)
        self.clip = cfg.clip

    def forward(self, x: Tensor, step: Step, cache: LayerCache | None = None) -> Tensor:
        """Let the new tokens x (B, T, C) look at themselves and the past -> (B, T, C)."""
        q, k, v = self.qkv(x)
        q, k = self.q_heads(q), self.k_heads(k)  # (B, T, H, D), (B, T, K, D)
        v = cut(v, self.clip).unflatten(-1, self.kv_shape)  # (B, T, K, D)
        q, k = self.position.turn(q, k, step)
        k, v = step.tap(f"{self.name}.k", k), step.tap(f"{self.name}.v", v)
        keys = Keys(k, v, step.places) if cache is None else cache.extend(k=k, v=v)  # (B, S, K, D) twice
        y = self.mix(q, keys, step, step.sight(self.sees, keys.places))  # (B, T, H, D)
        return self.wo(y.flatten(-2))  # (B, T, C)

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Heads and their widths of queries (H, D), keys (K, D) and values (K, D)."""
        return self.q_heads.shape, self.kv_shape, self.kv_shape

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
        q = self.q_heads(self.wq(x))  # (B, T, H, D)
        keys = cache.cross if cache is not None and cache.cross is not None else self.read(memory, step)
        if cache is not None:
            cache.cross = keys
        y = self.mix(q, keys, step, step.sight(self.sees, keys.places))  # (B, T, H, D)
        return self.wo(y.flatten(-2))  # (B, T, C)

    def read(self, memory: Memory | None, step: Step) -> Keys:
        """Keys and values (B, S, K, D) of the encoder's output."""
        assert memory is not None, "the first step of a decoder needs the encoder's output"
        k, v = self.qkv(memory.hidden)
        k = step.tap(f"{self.name}.k", self.k_heads(k))  # (B, S, K, D)
        v = step.tap(f"{self.name}.v", cut(v, self.clip).unflatten(-1, self.kv_shape))  # (B, S, K, D)
        return Keys(k, v, memory.places)


ATTENTIONS: Choices[Callable[..., ScoredAttention]] = Choices(
    "attention", {"grouped": GroupedQueryAttention, "latent": LatentAttention}
)
