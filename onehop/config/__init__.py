"""Floor 1: what can be asked for. No torch."""

from onehop.config.attention import AttentionConfig, QKNormConfig, ScoreConfig
from onehop.config.ffn import FFNConfig, GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import (
    BlockConfig,
    DropoutConfig,
    EmbedConfig,
    EncoderConfig,
    HeadConfig,
    ModelConfig,
    StackConfig,
)
from onehop.config.norm import LayerNormConfig, NormConfig, RMSNormConfig
from onehop.config.position import AlibiConfig, PositionConfig, RopeConfig, T5Config
from onehop.config.recipe import DataConfig, Kernel, Recipe, TrainConfig

__all__ = [
    "AlibiConfig", "AttentionConfig", "BlockConfig", "DataConfig", "DropoutConfig", "EmbedConfig", "EncoderConfig",
    "FFNConfig", "GatedConfig", "HeadConfig", "Kernel", "LayerNormConfig", "MoEConfig", "ModelConfig", "NormConfig",
    "PlainConfig", "PositionConfig", "QKNormConfig", "RMSNormConfig", "Recipe", "RopeConfig", "ScoreConfig",
    "StackConfig", "T5Config", "TrainConfig",
]  # fmt: skip
