"""onehop's own folder: config.json, model.safetensors, the tokenizer, generation_config.json and provenance.json."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.config.write import to_json
from onehop.formats.folder import CONFIG, describe
from onehop.formats.safetensors_header import SINGLE
from onehop.formats.table import Claim, Matched, refuse_too_many_layers
from onehop.model.build import torch_dtype
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer
from onehop.weights.memory import Report
from onehop.weights.place import new_files, put_tokenizer
from onehop.weights.safetensors_files import TensorFiles, open_tensors, write_tensors
from onehop.weights.transfer import dump, fill, skeleton

GENERATION, PROVENANCE = "generation_config.json", "provenance.json"


def save_native(
    model: Transformer,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | Path | None = None,
    provenance: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
) -> None:
    """Write a model as onehop's folder, whole or not at all; other files in the folder stay.

    tokenizer: one, or the folder to copy its files from. provenance: what made the model. generation: default settings
    under the names that `generation_config.json` uses; left out, the tokenizer's begin and end ids.
    """
    with new_files(Path(folder)) as new:
        write_native(model, new, tokenizer=tokenizer, provenance=provenance, generation=generation, dtype=dtype)


def write_native(
    model: Transformer,
    folder: Path,
    *,
    tokenizer: Tokenizer | Path | None = None,
    provenance: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """As `save_native`, into a folder that the caller puts in place; tensors: others than the model has now."""
    to = None if dtype is None else torch_dtype(dtype)
    write_tensors(folder / SINGLE, tensors or dict(dump(model, same_names(model), dtype=to)))
    (folder / CONFIG).write_text(to_json(model.config))
    put_tokenizer(folder, tokenizer)
    settings = ends(tokenizer) if generation is None else dict(generation)
    if settings:
        write_json(folder / GENERATION, settings)
    if provenance is not None:
        write_json(folder / PROVENANCE, provenance)


def load_native(
    folder: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    parts: Iterable[str | Path] = (),
) -> Transformer:
    """The model in onehop's folder; `parts` are the files of the user's own parts that it was made with."""
    described = describe(folder, parts=parts)
    if described.kind != "onehop":
        raise CheckpointError(f"{folder} is a Hugging Face folder, not one of onehop's own.")
    with open_tensors(described.folder) as tensors:
        return load_same_names(described.config, tensors, dtype=dtype, device=device)


def load_same_names(
    config: ModelConfig,
    tensors: TensorFiles,
    *,
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    report: Report | None = None,
) -> Transformer:
    """A model whose tensors lie in the file under our own names."""
    refuse_too_many_layers(config, len(tensors.entries), where=str(tensors.where))
    model = skeleton(config, where=tensors.where)
    needed = same_names(model)
    absent = {claim.ours[0] for claim in needed} - tensors.entries.keys()
    unclaimed = tensors.entries.keys() - {claim.ours[0] for claim in needed}
    if absent or unclaimed:
        raise CheckpointError.names(absent=absent, unclaimed=unclaimed, where=str(tensors.where))
    return fill(model, tensors, Matched(needed), dtype=dtype, device=device, report=report)


def same_names(model: Transformer) -> tuple[Claim, ...]:
    """Every tensor under its own name."""
    return tuple(Claim((name,), (name,)) for name in model.state_dict())


def ends(tokenizer: Tokenizer | Path | None) -> dict[str, Any]:
    """The begin and end ids of a tokenizer, as generation_config.json names them."""
    if not isinstance(tokenizer, Tokenizer):
        return {}
    found: dict[str, Any] = {}
    if tokenizer.bos_id is not None:
        found["bos_token_id"] = tokenizer.bos_id
    if tokenizer.eos_ids:
        found["eos_token_id"] = sorted(tokenizer.eos_ids)
    return found


def write_json(file: Path, table: Mapping[str, Any]) -> None:
    """A table as readable JSON."""
    file.write_text(json.dumps(dict(table), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
