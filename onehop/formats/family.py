"""The families that can be read and written, by their model_type. No torch."""

from typing import Any

from onehop.base.choices import Choices
from onehop.base.errors import CheckpointError, ConfigError, did_you_mean
from onehop.config.model import ModelConfig
from onehop.formats.bloom import BLOOM
from onehop.formats.deepseek_v2 import DEEPSEEK_V2
from onehop.formats.deepseek_v3 import DEEPSEEK_V3
from onehop.formats.falcon import FALCON
from onehop.formats.gpt2 import GPT2
from onehop.formats.gpt_bigcode import GPT_BIGCODE
from onehop.formats.gpt_neox import GPT_NEOX
from onehop.formats.gpt_oss import GPT_OSS
from onehop.formats.gptj import GPTJ
from onehop.formats.layout import Family
from onehop.formats.llama import LLAMA
from onehop.formats.mistral import MISTRAL
from onehop.formats.mixtral import MIXTRAL
from onehop.formats.mpt import MPT
from onehop.formats.olmoe import OLMOE
from onehop.formats.opt import OPT
from onehop.formats.qwen2_moe import QWEN2_MOE
from onehop.formats.qwen3_moe import QWEN3_MOE
from onehop.formats.t5 import MT5, T5
from onehop.formats.xglm import XGLM

_ALL = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    OLMOE,
    GPT_OSS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    QWEN2_MOE,
    QWEN3_MOE,
    GPT2,
    GPT_NEOX,
    BLOOM,
    FALCON,
    GPTJ,
    OPT,
    MPT,
    GPT_BIGCODE,
    XGLM,
    T5,
    MT5,
)
FAMILIES: Choices[Family] = Choices("family", {family.name: family for family in _ALL})


def family_for(raw: dict[str, Any]) -> Family:
    """The family of a config.json. Raises CheckpointError naming what is known."""
    name = raw.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(
            f"config.json names no model_type, so its layout is unknown. Known: {', '.join(FAMILIES.names())}."
        )
    if name not in FAMILIES:
        raise CheckpointError(f"models of the type {name!r} cannot be read. {did_you_mean(name, FAMILIES)}")
    return FAMILIES.get(name)


def read_config(raw: dict[str, Any]) -> ModelConfig:
    """A Hugging Face config.json as our config."""
    return family_for(raw).read_config(raw)


def family_of(config: ModelConfig) -> Family:
    """The first family whose layout holds all of `config`. Raises ConfigError naming what the first one lacks."""
    refusals = []
    for name in FAMILIES:
        family = FAMILIES.get(name)
        try:
            family.write_config(config)
        except ConfigError as error:
            refusals.append(error)
        else:
            return family
    raise refusals[0]


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Our config as a Hugging Face config.json. Raises ConfigError naming what cannot be expressed."""
    return family_of(config).write_config(config)
