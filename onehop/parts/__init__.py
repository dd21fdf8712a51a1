"""Floor 2: one idea of the literature per file. Every part can be imported and used alone."""

from onehop.parts.absolute import LearnedPositions, SinusoidalPositions
from onehop.parts.attend import attend
from onehop.parts.attention import CrossAttention, GroupedQueryAttention, Memory
from onehop.parts.bias import Alibi, T5Bias
from onehop.parts.cache import Cache, CacheSpec, LayerCache
from onehop.parts.ffn import GatedFFN, PlainFFN
from onehop.parts.keys import Keys
from onehop.parts.linear import Linear
from onehop.parts.moe import MoE, Routing
from onehop.parts.norm import LayerNorm, RMSNorm
from onehop.parts.own import part
from onehop.parts.places import Places
from onehop.parts.position import PositionScheme
from onehop.parts.rope import Rope
from onehop.parts.score import score
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight
from onehop.parts.step import Step

__all__ = [
    "Alibi", "Cache", "CacheSpec", "CrossAttention", "GatedFFN", "GroupedQueryAttention", "Keys", "LayerCache",
    "LayerNorm", "LearnedPositions", "Linear", "Memory", "MoE", "Places", "PlainFFN", "PositionScheme", "RMSNorm",
    "Rope", "Routing", "ScoreRule", "Sees", "Sight", "SinusoidalPositions", "Step", "T5Bias", "attend", "part", "score",
]  # fmt: skip
