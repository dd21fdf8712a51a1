"""Floor 4: tensors in and out of files, by the tables of `formats`."""

from onehop.weights.gguf import load_gguf, save_gguf
from onehop.weights.hf import load_hf, save_hf
from onehop.weights.native import load_native, save_native
from onehop.weights.open import Opened, open_model

__all__ = ["Opened", "load_gguf", "load_hf", "load_native", "open_model", "save_gguf", "save_hf", "save_native"]
