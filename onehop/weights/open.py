"""Open a model by its path or name, whatever its layout, and learn everything its folder says."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from onehop.config.model import ModelConfig
from onehop.formats.folder import CONFIG, Described, describe, read_json
from onehop.formats.gguf.architecture import layout_of
from onehop.formats.gguf.tokenizer import read_tokenizer
from onehop.formats.layout import Family
from onehop.model.transformer import Transformer
from onehop.text.sources import tokenizer_file
from onehop.text.tokenizer import Tokenizer
from onehop.weights import gguf
from onehop.weights.generation import end_ids, settings
from onehop.weights.hf import load_described
from onehop.weights.locate import locate
from onehop.weights.memory import Report
from onehop.weights.native import PROVENANCE, load_same_names
from onehop.weights.safetensors_files import open_tensors

START = "decoder_start_token_id"
Check = Callable[[Tokenizer | None, Mapping[str, Any]], object]


@dataclass(frozen=True, eq=False)
class Opened:
    """A model and what its folder, or its GGUF file, says about it.

    `family` is the Hugging Face layout it came in, or could have (None: another). `generation` is what its
    generation_config.json holds; `eos_ids` has every end token and who names it.
    """

    model: Transformer
    config: ModelConfig
    folder: Path
    kind: Literal["onehop", "hf", "gguf"]
    family: Family | None
    tokenizer: Tokenizer | None
    generation: Mapping[str, Any]
    eos_ids: Mapping[int, str]
    provenance: Mapping[str, Any] | None

    @property
    def start_id(self) -> int | None:
        """The token that an encoder-decoder's answers begin with."""
        if self.config.encoder is None or self.kind == "gguf":
            return None
        files = (self.generation, read_json(self.folder / CONFIG))
        return next((file[START] for file in files if isinstance(file.get(START), int)), None)


def config_of(path: str | Path) -> ModelConfig:
    """The architecture of what `open_model` opens, without its weights."""
    return describe(locate(path)).config


def open_model(
    path: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    parts: Iterable[str | Path] = (),
    check: Check | None = None,
    report: Report | None = None,
) -> Opened:
    """Open a folder (onehop's or Hugging Face's), a GGUF file, a model that ships with onehop, or a hub name.

    dtype None: the checkpoint's own. parts: files of the user's own parts; nothing that a folder names is ever run.
    All that lies beside the weights is read before them. check is shown the tokenizer and `generation` then; what it
    raises comes before anything is loaded. report gets one line before loading: the size of the files, of the loaded
    model, and of the free memory; and before that one with the GGUF file that was chosen, where none was named.
    """
    place = locate(path)
    if report is not None and place.is_file() and place != Path(path):
        report(f"taking {place.name}")
    described = describe(place, parts=parts)
    folder = described.folder
    if described.kind == "gguf":
        return _gguf(described, dtype=dtype, device=device, check=check, report=report)
    tokenizer, generation = None if tokenizer_file(folder) is None else Tokenizer.load(folder), settings(folder)
    beside: dict[str, Any] = {
        "tokenizer": tokenizer,
        "generation": generation,
        "eos_ids": end_ids(folder),
        "provenance": read_json(folder / PROVENANCE) if (folder / PROVENANCE).is_file() else None,
    }
    if check is not None:
        check(tokenizer, generation)
    model = _load(described, dtype=dtype, device=device, report=report)
    return Opened(model, described.config, folder, kind=described.kind, family=described.family, **beside)


def _gguf(
    described: Described,
    *,
    dtype: torch.dtype | str | None,
    device: torch.device | str,
    check: Check | None,
    report: Report | None,
) -> Opened:
    assert described.header is not None, "a GGUF file was described by its header"
    tokenizer = read_tokenizer(described.header)
    generation = gguf.generation_of(described.header.metadata, tokenizer)
    if check is not None:
        check(tokenizer, generation)
    if report is not None and tokenizer is not None and tokenizer.settings.doubt is not None:
        report(f"note: {tokenizer.settings.doubt}")
    where = described.folder.name
    return Opened(
        model=gguf.load_described(described, dtype=dtype, device=device, report=report),
        config=described.config,
        folder=described.folder,
        kind="gguf",
        family=None if described.family is None else layout_of(described.family, described.config),
        tokenizer=tokenizer,
        generation=generation,
        eos_ids=dict.fromkeys(sorted(tokenizer.eos_ids), where) if tokenizer is not None else {},
        provenance=None,
    )


def _load(
    described: Described, *, dtype: torch.dtype | str | None, device: torch.device | str, report: Report | None
) -> Transformer:
    if described.family is not None:
        return load_described(described, dtype=dtype, device=device, report=report)
    with open_tensors(described.folder) as tensors:
        return load_same_names(described.config, tensors, dtype=dtype, device=device, report=report)
