"""From a path or a name to a LanguageModel."""

import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from onehop.lm.asked import notice
from onehop.lm.language_model import LanguageModel
from onehop.parts.lora import merge
from onehop.parts.score import check_kernel
from onehop.weights.adapter import adapter_config, read_adapter
from onehop.weights.memory import Report
from onehop.weights.open import Check, open_model


def load(
    path: str | Path,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    kernel: str = "auto",
    parts: Iterable[str | Path] = (),
    adapter: str | Path | None = None,
    prepare: bool | None = None,
    compile: bool = False,
    check: Check | None = None,
    report: Report | None = None,
) -> LanguageModel:
    """A model with its tokenizer and defaults.

    From a onehop folder, a Hugging Face folder, a GGUF file, a shipped model or a hub name. dtype None: the
    checkpoint's own (float32 where a GGUF file is quantised). kernel: how attention is computed (auto, plain, tiled or
    fused). parts: files with your own parts. adapter: a folder of PEFT's format, to be added to the weights. prepare,
    compile: as in `LanguageModel`. check: is shown the tokenizer and what generation_config.json holds before the
    weights are read, and may raise. report: is told, before loading, in one line, the size of the files, of the loaded
    model and of the free memory; what is larger than that is refused; and behind it what the checkpoint's settings ask
    for and generation here does not do (without a report: a warning).
    """
    parts = tuple(parts)
    check_kernel(kernel)
    if adapter is not None:
        adapter_config(adapter)
    opened = open_model(path, dtype=dtype, device=device, parts=parts, check=check, report=report)
    if adapter is not None:
        merge(opened.model, read_adapter(opened.model, adapter, family=opened.family))
    tokenizer = opened.tokenizer
    found = LanguageModel(
        opened.model, tokenizer,
        eos_ids=frozenset(opened.eos_ids).union(() if tokenizer is None else tokenizer.eos_ids),
        start_id=opened.start_id, generation_config=opened.generation, provenance=opened.provenance,
        folder=None if opened.kind == "gguf" else opened.folder, family=opened.family,
        parts=parts, kernel=kernel, prepare=prepare, compile=compile, say=report,
    )  # fmt: skip
    return _told(found, report)


def _told(lm: LanguageModel, report: Report | None) -> LanguageModel:
    """Say what the checkpoint asks for and does not get."""
    line = notice(lm.not_done)
    if line is not None and report is None:
        warnings.warn(line, stacklevel=3)
    elif line is not None and report is not None:
        report(f"note: {line}")
    return lm
