"""GGUF files, both ways, by the tables of `formats.gguf`: what llama.cpp runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.base.files import atomic_file
from onehop.formats.folder import Described, describe
from onehop.formats.gguf.architecture import ARCHITECTURE, write_config
from onehop.formats.gguf.tokenizer import KEY, write_tokenizer
from onehop.formats.layout import Family
from onehop.formats.table import Claim, claims
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer
from onehop.weights.gguf_files import FILE_TYPES, type_of, write_gguf
from onehop.weights.memory import Report
from onehop.weights.ops import OPS
from onehop.weights.source import matched, tensors_of
from onehop.weights.transfer import dump, fill, skeleton


def load_gguf(
    file: str | Path, *, dtype: torch.dtype | str | None = None, device: torch.device | str = "cpu"
) -> Transformer:
    """The model in a GGUF file; `dtype` None is the file's own, or float32 where it is quantised."""
    return load_described(describe(file), dtype=dtype, device=device)


def load_described(
    described: Described,
    *,
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    report: Report | None = None,
) -> Transformer:
    """The model of a GGUF file whose header has been read."""
    if described.header is None or described.family is None:
        raise CheckpointError(f"{described.folder} is no GGUF file.")
    with tensors_of(described) as tensors:
        found = matched(described, tensors)  # before the skeleton: a header may claim a million layers
        model = skeleton(described.config, where=tensors.where)
        return fill(model, tensors, found, dtype=dtype, device=device, report=report)


def generation_of(metadata: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What a generation_config.json would say: the special ids."""
    words = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
    found = {ours: metadata[KEY + theirs] for ours, theirs in words.items() if KEY + theirs in metadata}
    if tokenizer is not None and tokenizer.eos_ids:
        own = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        ids = [*own, *sorted(tokenizer.eos_ids - set(own))]
        found["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return found


def save_gguf(
    model: Transformer,
    file: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: str | None = None,
    family: Family | None = None,
    name: str | None = None,
    end_ids: tuple[int, ...] = (),
) -> None:
    """Write a model as one GGUF file, whole or not at all.

    dtype: float32, float16, bfloat16 or q8_0 (None: the model's own). family: the layout that the model came in, whose
    architecture is preferred. Raises ConfigError naming what no architecture of llama.cpp can express.
    """
    own = str(model.embed.tokens.weight.dtype).removeprefix("torch.")
    wanted = type_of(own if dtype is None else str(dtype).removeprefix("torch."))
    architecture, keys, extra = write_config(model.config, prefer=None if family is None else family.name)
    table = tuple(claims(architecture.tensors, model.config))
    n_rows = model.embed.tokens.weight.size(0)
    metadata = {
        "general.type": "model",
        "general.name": name or Path(file).stem,
        "general.file_type": FILE_TYPES[wanted],
        "general.quantization_version": 2,
        **{f"{architecture.name}.{key}": value for key, value in keys.items()},
        **write_tokenizer(tokenizer, n_rows=n_rows, end_ids=end_ids),
    }
    assert ARCHITECTURE not in metadata, "the writer names the architecture itself"
    lists = {name: torch.tensor(values) for name, values in extra.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in lists.items()} | shapes_of(model, table)
    with atomic_file(file) as temporary:
        tensors = (pair for source in (lists.items(), dump(model, table)) for pair in source)
        write_gguf(temporary, architecture.name, metadata, shapes=shapes, tensors=tensors, wanted=wanted)


def shapes_of(model: Transformer, table: tuple[Claim, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a file, in the order in which they are dumped."""
    weights: dict[str, Tensor] = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
    out: dict[str, tuple[int, ...]] = {}
    for claim in table:
        theirs = OPS.get(claim.op).save([weights[name] for name in claim.ours], claim.sizes)
        out |= {name: tuple(tensor.shape) for name, tensor in zip(claim.theirs, theirs, strict=True)}
    return out
