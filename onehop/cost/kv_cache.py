"""Bytes of the KV cache: what each layer keeps of each token, and how many texts fit.

Shazeer 2019, arXiv:1911.02150, section 2.3 (keys and values); Ainslie et al. 2023, arXiv:2305.13245 (groups of heads);
DeepSeek-V2, arXiv:2405.04434, section 2.1 (a latent and the turning dims); windows: a ring of the window's size.
"""

from dataclasses import dataclass, field
from math import ceil

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.model import ModelConfig
from onehop.cost.flops import slots
from onehop.cost.numbers import cache_bytes
from onehop.cost.own import UNKNOWN, own_count
from onehop.cost.weights import turning_width


@dataclass(frozen=True)
class LayerKind:
    """Layers that keep the same."""

    kind: str  # multi-head, grouped, multi-query, latent, or the name of a part of one's own
    n_layers: int
    bytes_per_token: int
    window: int | None
    attention: AttentionConfig


@dataclass(frozen=True)
class KVCache:
    """What a text costs in the cache, by kinds of layers; `cross_bytes` per token of an encoder's source."""

    dtype: str
    layers: list[LayerKind]
    cross_bytes_per_token: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers, before a window is full."""
        return sum(layer.n_layers * layer.bytes_per_token for layer in self.layers)

    def bytes(self, *, batch: int = 1, context: int, source: int = 0) -> int:
        """Bytes for `batch` texts of `context` tokens, read from `source` tokens each."""
        own = sum(layer.n_layers * layer.bytes_per_token * slots(layer.attention, context) for layer in self.layers)
        return batch * (own + source * self.cross_bytes_per_token)


def kv_cache(config: ModelConfig, dtype: str) -> KVCache:
    """What a model's decoder keeps, in numbers of `dtype`: nothing where tokens see those behind them."""
    if config.both_ways:
        return KVCache(dtype, [])
    counted: dict[AttentionConfig, int] = {}
    cross = 0
    for block in config.layers():
        counted[block.attention] = counted.get(block.attention, 0) + 1
        if block.cross is not None:
            cross += cache_bytes(dtype, block.cross.d_head, 2 * block.cross.n_kv_heads)
    missing: list[str] = []
    layers = [LayerKind(_kind(a), n, _bytes(config, a, dtype, missing), a.window, a) for a, n in counted.items()]
    return KVCache(dtype, layers, cross, missing)


def _kind(a: AttentionConfig) -> str:
    if type(a) is not AttentionConfig:
        return a.kind
    return "multi-head" if a.group == 1 else "multi-query" if a.n_kv_heads == 1 else "grouped"


def _bytes(config: ModelConfig, a: AttentionConfig, dtype: str, missing: list[str]) -> int:
    if type(a) is AttentionConfig:
        return cache_bytes(dtype, a.d_head, 2 * a.n_kv_heads)
    if type(a) is LatentConfig:
        return cache_bytes(dtype, a.d_latent, 1) + cache_bytes(dtype, turning_width(a), 1)
    numbers = own_count(a, "cached", config.d_model)
    if numbers is UNKNOWN:
        missing.append(f"attention {a.kind}: what it caches")
    return cache_bytes(dtype, ceil(numbers or 0), 1 if numbers else 0)
