"""The floors of the house: which package stands on which, as data. `tests/test_floors.py` holds the code to it.

A package may import its own files and packages on strictly lower floors; never up, never sideways.

Rows without a package keep a place for one. README.md follows a training step and a request through it, file by file.
"""

FLOORS: dict[str, int] = {
    "cli": 9,  # one command per file
    "serve": 8,  # HTTP API and page
    "lab": 8,  # experiments
    "view": 7,  # inspection: capture, panels
    "lm": 6,  # a model, its tokenizer and its engine: the public face
    "training": 6,  # a run: data, step, report, save
    "generate": 5,  # requests to tokens
    "parallel": 5,  # one model on many ranks
    "weights": 4,  # tensors in and out of files, by the tables of `formats`
    "model": 3,  # block, transformer, taps, build
    "parts": 2,  # one idea of the literature per file
    "data": 2,  # text to batches
    "machine": 2,  # measured peaks
    "cost": 2,  # arithmetic on configs
    "formats": 2,  # one file per checkpoint family
    "config": 1,  # what can be asked for
    "text": 1,  # strings to token ids and back
    "base": 0,  # errors, choices, units, files
}

# These answer without waiting for torch (seconds to load), and run where it is not wanted: plans, --help, tokenizers.
TORCH_FREE: frozenset[str] = frozenset({"base", "config", "text", "cost", "formats"})

# Files beside the packages: the table itself, the public names (looked up when first used) and `python -m onehop`.
ROOT_FILES: dict[str, int] = {"floors": 0, "__init__": 10, "__main__": 10}
