"""Hugging Face folders, both ways, by the tables of `formats`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from onehop.base.errors import CheckpointError
from onehop.formats.family import family_of
from onehop.formats.folder import CONFIG, Described, describe
from onehop.formats.layout import Family
from onehop.formats.table import claims
from onehop.model.build import torch_dtype
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer
from onehop.weights.memory import Report
from onehop.weights.native import GENERATION, ends, write_json
from onehop.weights.place import new_files, put_tokenizer
from onehop.weights.safetensors_files import write_model
from onehop.weights.source import matched, tensors_of
from onehop.weights.transfer import dump, fill, skeleton

MAX_SHARD = 5_000_000_000  # bytes
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load_hf(
    folder: str | Path, *, dtype: torch.dtype | str | None = None, device: torch.device | str = "cpu"
) -> Transformer:
    """The model in a Hugging Face folder; `dtype` None is the file's own."""
    described = describe(folder)
    if described.kind != "hf":
        raise CheckpointError(f"{folder} is one of onehop's own folders, not Hugging Face's.")
    return load_described(described, dtype=dtype, device=device)


def load_described(
    described: Described,
    *,
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    report: Report | None = None,
) -> Transformer:
    """The model of a Hugging Face folder whose config has been read."""
    with tensors_of(described) as tensors:
        found = matched(described, tensors)  # before the skeleton: a config may claim a million layers
        model = skeleton(described.config, where=described.folder)
        return fill(model, tensors, found, dtype=dtype, device=device, report=report)


def save_hf(
    model: Transformer,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | Path | None = None,
    generation: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    family: Family | None = None,
    max_shard: int = MAX_SHARD,
) -> None:
    """Write a model as a folder that `transformers` opens, whole or not at all. Arguments as `save_native`.

    `family` None is the first that can express the config. Raises ConfigError, naming what, where none can.
    """
    family = family_of(model.config) if family is None else family
    config = family.write_config(model.config)
    to = model.embed.tokens.weight.dtype if dtype is None else torch_dtype(dtype)
    name = str(to).removeprefix("torch.")
    settings = ends(tokenizer) if generation is None else dict(generation)
    ids = {key: settings.get(key) for key in TOKEN_IDS}
    with new_files(Path(folder)) as new:
        write_model(new, dump(model, claims(family.tensors, model.config), dtype=to), max_bytes=max_shard)
        # Both spellings of the dtype and, for the reader's own defaults, explicit nulls for ids that do not exist.
        write_json(new / CONFIG, {**config, **ids, "dtype": name, "torch_dtype": name})
        if settings:
            write_json(new / GENERATION, settings)
        put_tokenizer(new, tokenizer)
