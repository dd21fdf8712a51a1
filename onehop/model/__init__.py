"""Floor 3: the model. One definition, used by training, prefill, decoding, inspection and export."""

from onehop.model.build import build
from onehop.model.transformer import States, Transformer

__all__ = ["States", "Transformer", "build"]
