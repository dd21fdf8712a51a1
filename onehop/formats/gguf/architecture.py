"""The architectures of GGUF files that can be read and written, and a file's metadata as our config. No torch."""

import math
from typing import Any

from onehop.base.choices import Choices
from onehop.base.errors import CheckpointError, ConfigError, did_you_mean
from onehop.config.ffn import MoEConfig
from onehop.config.model import BlockConfig, DropoutConfig, ModelConfig
from onehop.config.part import Part
from onehop.config.position import LongRopeScaling, RopeConfig
from onehop.formats.family import FAMILIES
from onehop.formats.gguf.classic import BLOOM, FALCON, GPT2, GPTNEOX, MPT, STARCODER2
from onehop.formats.gguf.gemma import GEMMA, GEMMA2, GEMMA3
from onehop.formats.gguf.header import Header, float32, shortest
from onehop.formats.gguf.llama import LLAMA
from onehop.formats.gguf.phi3 import PHI3
from onehop.formats.gguf.qwen import QWEN2, QWEN3
from onehop.formats.gguf.rope import FACTORS
from onehop.formats.keys import Json
from onehop.formats.layout import Family

_ALL = (LLAMA, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, PHI3, GPT2, STARCODER2, GPTNEOX, FALCON, BLOOM, MPT)
ARCHITECTURES: Choices[Family] = Choices("architecture", {family.name: family for family in _ALL})
ARCHITECTURE, EMBEDDING = "general.architecture", "token_embd.weight"

KEPT = {"blocks", "scale"}  # rounded one by one; no key, but follows from widths

# Several layouts of Hugging Face are one architecture there; others have another name, or their own.
NAMES = {"mistral": "llama", "mixtral": "llama", "gpt_neox": "gptneox", "gemma3_text": "gemma3"}


def architecture_of(header: Header) -> Family:
    """The table for a file. Raises CheckpointError naming what is known."""
    name = header.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        hint = did_you_mean(str(name), ARCHITECTURES)
        raise CheckpointError(f"{header.file}: models of the architecture {name!r} cannot be read. {hint}")
    return ARCHITECTURES.get(name)


def raw_of(header: Header, family: Family) -> Json:
    """What the tables read: keys without the architecture's name, and the tensors that say something by being there."""
    if EMBEDDING not in header.tensors or len(header.tensors[EMBEDDING].shape) != 2:
        raise CheckpointError(
            f"{header.file}: {EMBEDDING} is missing or no matrix. Get the file again from its source."
        )
    before = f"{family.name}."
    raw = {key.removeprefix(before): value for key, value in header.metadata.items() if key.startswith(before)}
    for name in {name for row in family.keys for name in row.names} & header.tensors.keys():
        raw[name] = header.numbers(name) if name in FACTORS else True
    return raw | {"vocab_size": header.tensors[EMBEDDING].shape[0]}


def read_config(header: Header) -> ModelConfig:
    """A file's metadata as our config. Raises CheckpointError for every key that cannot be honoured."""
    family = architecture_of(header)
    try:
        return family.read_config(raw_of(header, family))
    except CheckpointError as error:
        words = str(error).replace("config.json", "its metadata")
        raise CheckpointError(words if str(header.file) in words else f"{header.file}: {words}") from error


def write_config(config: ModelConfig, *, prefer: str | None = None) -> tuple[Family, Json, dict[str, list[float]]]:
    """The architecture for a config, its keys (without the architecture's name), and tensors that belong to the config.

    prefer: the name of the family that the model came in. Raises ConfigError naming what the first one lacks.
    """
    config = as_written(config)
    wanted = NAMES.get(prefer or "", prefer)
    order = sorted(ARCHITECTURES, key=lambda name: name != wanted)
    refusals = []
    for name in order:
        family = ARCHITECTURES.get(name)
        try:
            raw = family.write_config(config)
        except ConfigError as error:
            refusals.append(error)
            continue
        tensors = {name: value for name, value in raw.items() if name in FACTORS}
        keys = {key: value for key, value in raw.items() if not _is_tensor(key)}
        return family, keys, tensors
    raise refusals[0]


def layout_of(architecture: Family, config: ModelConfig) -> Family | None:
    """The layout of Hugging Face that a file of this architecture was made from, or could be; None where none is."""
    for name in (architecture.name, *(theirs for theirs, ours in NAMES.items() if ours == architecture.name)):
        if name in FAMILIES:
            family = FAMILIES.get(name)
            try:
                family.write_config(config)
            except ConfigError:
                continue
            return family
    return None


def _is_tensor(key: str) -> bool:
    return key.endswith((".weight", ".bias"))


def as_written(config: ModelConfig) -> ModelConfig:
    """The config as a GGUF file can hold it: without what matters in training only, numbers in float32."""
    blocks = tuple(_inference(_rounded(block)) for block in config.blocks)
    plain: dict[str, Any] = {"dropout": DropoutConfig(), "init_std": 0.02, "parts": (), "blocks": blocks}
    return _rounded(config).model_copy(update=plain)


def _inference(block: BlockConfig) -> BlockConfig:
    ffn, position = block.ffn, block.attention.position
    if isinstance(ffn, MoEConfig) and ffn.balance != "bias":
        names = ("balance", "balance_weight", "balance_rate", "z_weight")
        ffn = ffn.model_copy(update={name: MoEConfig.model_fields[name].default for name in names})
    if isinstance(position, RopeConfig) and isinstance(position.scaling, LongRopeScaling):
        scaling = position.scaling.model_copy(update={"attention_factor": _gain(position.scaling), "factor": None})
        position = position.model_copy(update={"scaling": scaling})
    attention = block.attention.model_copy(update={"position": position})
    return block.model_copy(update={"ffn": ffn, "attention": attention})


def _gain(scaling: LongRopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    factor = scaling.factor or 1.0
    return shortest(float32(math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(scaling.original_max_len))))


def _rounded(part: Any) -> Any:
    """A part of a config with every number as the file's float32 gives it back."""
    if isinstance(part, Part):
        update = {name: _rounded(getattr(part, name)) for name in type(part).model_fields if name not in KEPT}
        return part.model_copy(update=update)
    if isinstance(part, tuple):
        return tuple(_rounded(value) for value in part)
    return shortest(float32(part)) if isinstance(part, float) else part
