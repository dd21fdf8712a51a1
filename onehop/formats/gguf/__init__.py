"""GGUF files: their header, each architecture's tables, and their tokenizer. No torch."""

from onehop.formats.gguf.architecture import ARCHITECTURES, architecture_of, read_config, write_config
from onehop.formats.gguf.header import Header, Place, read_header
from onehop.formats.gguf.split import read_model

__all__ = [
    "ARCHITECTURES",
    "Header",
    "Place",
    "architecture_of",
    "read_config",
    "read_header",
    "read_model",
    "write_config",
]
