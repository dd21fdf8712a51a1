"""The tensors of a model's own files, whatever their layout, and which of ours each becomes."""

from collections.abc import Iterator
from contextlib import contextmanager

from onehop.formats.folder import Described
from onehop.formats.table import Claim, Matched, match
from onehop.model.transformer import Transformer
from onehop.weights.gguf_files import GGUFTensors
from onehop.weights.native import same_names
from onehop.weights.quantised import dequantised
from onehop.weights.safetensors_files import Tensors, open_tensors


@contextmanager
def tensors_of(described: Described) -> Iterator[Tensors]:
    """The tensors of a folder or of a GGUF file, as plain numbers."""
    if described.header is not None:
        yield GGUFTensors(described.header)
        return
    with open_tensors(described.folder) as files:
        yield files if described.kind == "onehop" else dequantised(files, described.raw)


def matched(described: Described, tensors: Tensors) -> Matched:
    """The layout's table held against the names that these files have: bodies alone and old files have their own."""
    return match(described.tensors(tensors.entries), described.config, tensors.entries, where=str(tensors.where))


def claims_of(described: Described, tensors: Tensors, model: Transformer) -> tuple[Claim, ...]:
    """Which of the files' tensors became which of the model's."""
    return same_names(model) if described.family is None else matched(described, tensors).claims
