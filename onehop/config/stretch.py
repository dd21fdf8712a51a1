"""A config for longer texts than the model was trained on: rotary positions stretched, and what that expects."""

from typing import Any

from onehop.base.errors import ConfigError
from onehop.config.attention import AttentionConfig
from onehop.config.model import BlockConfig, ModelConfig
from onehop.config.position import RopeConfig

ROPES = ("yarn", "linear", "ntk", "llama3")
FARTHEST = 512  # times the trained length: 2048k tokens from 4k, with angles that were searched for (arXiv:2402.13753)


def stretched(config: ModelConfig, max_len: int, *, rope: str) -> ModelConfig:
    """The config with rotary positions stretched to `max_len` tokens by one of ROPES; weights stay as they are.

    Raises ConfigError for models without rotary positions, that are stretched already, or that are as long already; and
    for a stretch beyond FARTHEST.
    """
    if rope not in ROPES:
        raise ConfigError(f"rope={rope!r} is not known. Use {', '.join(ROPES)}.")
    if max_len <= config.max_len:
        raise ConfigError(f"context={max_len} is no longer than the {config.max_len} tokens of this model.")
    if max_len > FARTHEST * config.max_len:
        raise ConfigError(
            f"context={max_len} is beyond {FARTHEST} times the {config.max_len} tokens of this model, the farthest "
            f"stretch that was reported to work (arXiv:2402.13753). Give {FARTHEST * config.max_len} or less."
        )
    if not any(_is_global(block.attention) for block in config.blocks):
        raise ConfigError("context stretches rotary positions, of which this model has none. Leave it out.")
    factor = max_len / config.max_len
    blocks = tuple(_stretched(block, rope, factor, config.max_len) for block in config.blocks)
    return ModelConfig.model_validate({**dict(config), "blocks": blocks, "max_len": max_len})


def _is_global(attention: AttentionConfig) -> bool:
    """Whether a layer turns and sees the whole text: those with a window see no farther in a longer one."""
    return isinstance(attention.position, RopeConfig) and attention.window is None


def _stretched(block: BlockConfig, rope: str, factor: float, original: int) -> BlockConfig:
    attention = block.attention
    position = attention.position
    if not isinstance(position, RopeConfig) or attention.window is not None:
        return block
    if position.scaling is not None:
        raise ConfigError(
            f"this model's rotary positions are stretched already ({position.scaling.kind}). "
            "Begin with the model that it was made from."
        )
    scaling: dict[str, Any] = {"kind": rope, "factor": factor}
    if rope in ("yarn", "llama3"):
        scaling["original_max_len"] = original
    new = RopeConfig.model_validate({**dict(position), "scaling": scaling})
    return block.model_copy(update={"attention": attention.model_copy(update={"position": new})})


def expected_training(rope: str, factor: float) -> str:
    """What the stretched model needs before it is used, and the source that says so."""
    sources = {
        "linear": "about 1000 steps of fine-tuning at the new length (arXiv:2306.15595, section 3.4)",
        "ntk": "none for a small factor, with some loss; some fine-tuning is better (arXiv:2309.00071, section 3.1)",
        "yarn": "about 400 steps at the new length, 0.1 % of the pre-training tokens (arXiv:2309.00071, section 4.1)",
        "llama3": "training in stages of growing length, 800 billion tokens in the release (arXiv:2407.21783, 3.4.2)",
    }
    return f"{rope} × {factor:g}: {sources[rope]}"
