"""Position schemes inside attention, by name."""

from collections.abc import Callable
from typing import Any

from onehop.base.choices import Choices
from onehop.config.attention import AttentionConfig
from onehop.config.position import AlibiConfig, PositionConfig, RopeConfig, T5Config
from onehop.parts.bias import Alibi, RoundedAlibi, T5Bias
from onehop.parts.rope import Rope
from onehop.parts.scheme import PositionScheme

__all__ = ["POSITIONS", "PositionScheme"]


def rope(cfg: RopeConfig, attention: AttentionConfig) -> PositionScheme:
    """Rotary positions for heads of `attention`."""
    return Rope(cfg, attention.d_head)


def alibi(cfg: AlibiConfig, attention: AttentionConfig) -> PositionScheme:
    """Linear biases for the heads of `attention`."""
    scale = (attention.scale or attention.d_head**-0.5) if cfg.scaled else 1.0
    return (RoundedAlibi if cfg.rounded else Alibi)(attention.n_heads, max_exponent=cfg.max_exponent, scale=scale)


def t5(cfg: T5Config, attention: AttentionConfig) -> PositionScheme:
    """Bucket biases; later keys have buckets of their own where attention sees them all."""
    return T5Bias(cfg, attention.n_heads, bidirectional=attention.sees == "all")


def none(cfg: PositionConfig, attention: AttentionConfig) -> PositionScheme:
    """No positions."""
    return PositionScheme()


POSITIONS: Choices[Callable[[Any, AttentionConfig], PositionScheme]] = Choices(
    "attention.position", {"rope": rope, "alibi": alibi, "t5": t5, "none": none}
)
