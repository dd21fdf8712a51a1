"""Latent attention: keys and values are made from a narrow latent, and the cache keeps no more than that."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from onehop.config.attention import LatentConfig
from onehop.config.position import RopeConfig
from onehop.parts.cache import CacheSpec, LayerCache
from onehop.parts.keys import Keys
from onehop.parts.linear import Linear, SideBySide
from onehop.parts.norm import NORMS
from onehop.parts.places import Places
from onehop.parts.position import PositionScheme
from onehop.parts.scored import ScoredAttention
from onehop.parts.step import Step


class LatentAttention(ScoredAttention):
    """Self-attention over keys and values that are made from a latent (B, S, L): (B, T, C) -> (B, T, C).

    DeepSeek-V2, arXiv:2405.04434, section 2.1, equations 9-19. A head's dims are those that do not turn, then the
    R = position.width that do; the latter are the same for the keys of all heads. The cache holds L + R numbers per
    token, of which all keys and values are made anew when they are read.
    """

    taps = ("latent", "turning", "q", "weights", "mixed")

    def __init__(
        self,
        d_model: int,
        cfg: LatentConfig,
        *,
        position: PositionScheme,
        change: nn.Module | None = None,
        dropout: float = 0.0,
        name: str = "attention",
    ):
        super().__init__(cfg, position=position, change=change, dropout=dropout, name=name)
        assert isinstance(cfg.position, RopeConfig), "a rule of the config"
        heads, turning, narrow = cfg.n_heads, cfg.position.width or cfg.d_head, cfg.d_latent_q
        self.heads, self.kv_heads, self.still, self.turning = heads, cfg.n_kv_heads, cfg.d_head - turning, turning
        self.d_latent, self.d_value = cfg.d_latent, cfg.d_value
        norm = NORMS.get(cfg.norm.kind)
        self.wq_down = nn.Identity() if narrow is None else Linear(d_model, narrow, bias=cfg.bias)
        self.q_norm = nn.Identity() if narrow is None else norm(narrow, cfg.norm)
        self.wq = Linear(narrow or d_model, heads * cfg.d_head)
        self.wkv_down = Linear(d_model, cfg.d_latent + turning, bias=cfg.bias)
        self.kv_norm = norm(cfg.d_latent, cfg.norm)
        self.wkv = Linear(cfg.d_latent, cfg.n_kv_heads * (self.still + cfg.d_value))
        self.wo = Linear(heads * cfg.d_value, d_model, bias=cfg.bias_out)
        self.down = SideBySide(self, "wq_down", "wkv_down")

    def forward(self, x: Tensor, step: Step, cache: LayerCache | None = None) -> Tensor:
        """Let the new tokens x (B, T, C) look at themselves and the past -> (B, T, C)."""
        narrow, both = self.down(x)
        q = self.wq(self.q_norm(narrow)).unflatten(-1, (self.heads, -1))  # (B, T, H, D)
        q, q_turning = q.split([self.still, self.turning], -1)
        latent, turning = both.split([self.d_latent, self.turning], -1)  # (B, T, L), (B, T, R)
        q_turning, turning = self.position.turn(q_turning, turning.unsqueeze(2), step)
        kept = {
            "latent": step.tap(f"{self.name}.latent", self.kv_norm(latent)),
            "turning": step.tap(f"{self.name}.turning", turning.squeeze(2)),
        }
        kept, places = (kept, step.places) if cache is None else cache.write(**kept)
        keys = self.expand(kept, places)  # (B, S, K, D), (B, S, K, Dv)
        y = self.mix(torch.cat([q, q_turning], -1), keys, step, step.sight(self.sees, keys.places))  # (B, T, H, Dv)
        return self.wo(y.flatten(-2))  # (B, T, C)

    def expand(self, kept: Mapping[str, Tensor], places: Places) -> Keys:
        """Keys (B, S, K, D) and values (B, S, K, Dv) of the kept latent (B, S, L) and turning dims (B, S, R)."""
        made = self.wkv(kept["latent"]).unflatten(-1, (self.kv_heads, -1))  # (B, S, K, D - R + Dv)
        k, v = made.split([self.still, self.d_value], -1)
        turning = kept["turning"].unsqueeze(2).expand(-1, -1, self.kv_heads, -1)  # (B, S, K, R)
        return Keys(torch.cat([k, turning], -1), v, places)

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Heads and their widths of queries (H, D), keys (K, D) and values (K, Dv)."""
        width = self.still + self.turning
        return (self.heads, width), (self.kv_heads, width), (self.kv_heads, self.d_value)

    def cache_spec(self) -> CacheSpec:
        """What this layer keeps per token."""
        return CacheSpec({"latent": (self.d_latent,), "turning": (self.turning,)}, self.sees.window)
