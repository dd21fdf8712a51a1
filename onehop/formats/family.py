"""The families that can be read and written, by their model_type. No torch."""

from typing import Any

from onehop.base.choices import Choices
from onehop.base.errors import CheckpointError, ConfigError, did_you_mean
from onehop.config.model import ModelConfig
from onehop.formats.bart import BART, MBART
from onehop.formats.bert import BERT
from onehop.formats.bloom import BLOOM
from onehop.formats.cohere import COHERE
from onehop.formats.deepseek_v2 import DEEPSEEK_V2
from onehop.formats.deepseek_v3 import DEEPSEEK_V3
from onehop.formats.elsewhere import NEEDED
from onehop.formats.falcon import FALCON
from onehop.formats.gemma import GEMMA
from onehop.formats.gemma2 import GEMMA2
from onehop.formats.gemma3 import GEMMA3
from onehop.formats.gemma3_text import GEMMA3_TEXT
from onehop.formats.gpt2 import GPT2
from onehop.formats.gpt_bigcode import GPT_BIGCODE
from onehop.formats.gpt_neox import GPT_NEOX
from onehop.formats.gpt_oss import GPT_OSS
from onehop.formats.gptj import GPTJ
from onehop.formats.granite import GRANITE
from onehop.formats.inside import Whole
from onehop.formats.layout import Family
from onehop.formats.llama import LLAMA
from onehop.formats.marian import MARIAN
from onehop.formats.mistral import MISTRAL
from onehop.formats.mistral3 import MISTRAL3
from onehop.formats.mixtral import MIXTRAL
from onehop.formats.mpt import MPT
from onehop.formats.olmo import OLMO
from onehop.formats.olmo2 import OLMO2
from onehop.formats.olmoe import OLMOE
from onehop.formats.opt import OPT
from onehop.formats.phi3 import PHI3
from onehop.formats.qwen2 import QWEN2
from onehop.formats.qwen2_moe import QWEN2_MOE
from onehop.formats.qwen3 import QWEN3
from onehop.formats.qwen3_moe import QWEN3_MOE
from onehop.formats.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL
from onehop.formats.smollm3 import SMOLLM3
from onehop.formats.stablelm import STABLELM
from onehop.formats.starcoder2 import STARCODER2
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
    QWEN2,
    QWEN3,
    PHI3,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    OLMO,
    OLMO2,
    GRANITE,
    SMOLLM3,
    STARCODER2,
    STABLELM,
    COHERE,
    BART,
    MBART,
    MARIAN,
    BERT,
)
FAMILIES: Choices[Family] = Choices("family", {family.name: family for family in _ALL})
# Larger models, of which the text is read.
WHOLES: dict[str, Whole] = {whole.name: whole for whole in (GEMMA3, MISTRAL3, QWEN2_VL, QWEN2_5_VL, QWEN3_VL)}


def text_part(raw: dict[str, Any]) -> tuple[dict[str, Any], Whole | None]:
    """The config.json of a text model, and the larger model that it was found in, if any."""
    name = raw.get("model_type")
    whole = WHOLES.get(name) if isinstance(name, str) else None
    return (raw, None) if whole is None else (whole.text(raw), whole)


def family_for(raw: dict[str, Any]) -> Family:
    """The family of a config.json. Raises CheckpointError naming what is known."""
    name = raw.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(
            f"config.json names no model_type, so its layout is unknown. Known: {', '.join(FAMILIES.names())}."
        )
    if name in NEEDED:
        raise CheckpointError(
            f"models of the type {name!r} cannot be read: that would take {NEEDED[name]}. Known: {_known()}."
        )
    if name not in FAMILIES:
        raise CheckpointError(f"models of the type {name!r} cannot be read. {did_you_mean(name, FAMILIES)}")
    return FAMILIES.get(name)


def _known() -> str:
    return ", ".join([*FAMILIES.names(), *WHOLES])


def read_config(raw: dict[str, Any]) -> ModelConfig:
    """A Hugging Face config.json as our config: of a larger model, its text model's."""
    text, _ = text_part(raw)
    return family_for(text).read_config(text)


def family_of(config: ModelConfig) -> Family:
    """The first family whose layout holds all of `config`. Raises ConfigError naming what the most alike one lacks."""
    refusals: list[tuple[tuple[int, int], ConfigError]] = []
    for name in FAMILIES:
        family = FAMILIES.get(name)
        try:
            family.write_config(config)
        except ConfigError as error:
            refusals.append((family.unlike(config), error))
        else:
            return family
    raise min(refusals, key=lambda refusal: refusal[0])[1]


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Our config as a Hugging Face config.json. Raises ConfigError naming what cannot be expressed."""
    return family_of(config).write_config(config)
