"""Floor 1: what can be asked for. No torch."""

from onehop.config.attention import AttentionConfig, QKNormConfig, ScoreConfig
from onehop.config.data import DataConfig
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
from onehop.config.overrides import spelling
from onehop.config.own import load_own
from onehop.config.position import AlibiConfig, PositionConfig, RopeConfig, T5Config
from onehop.config.read import Loaded, model_from_dict, read
from onehop.config.recipe import Kernel, Recipe, TrainConfig
from onehop.config.write import to_dict, to_json, to_toml

__all__ = [
    "AlibiConfig", "AttentionConfig", "BlockConfig", "DataConfig", "DropoutConfig", "EmbedConfig", "EncoderConfig",
    "FFNConfig", "GatedConfig", "HeadConfig", "Kernel", "LayerNormConfig", "Loaded", "MoEConfig", "ModelConfig",
    "NormConfig", "PlainConfig", "PositionConfig", "QKNormConfig", "RMSNormConfig", "Recipe", "RopeConfig",
    "ScoreConfig", "StackConfig", "T5Config", "TrainConfig", "load_own", "model_from_dict", "read",
    "spelling", "to_dict", "to_json", "to_toml",
]  # fmt: skip
