"""Where a model may be written: never over a run, and over anything else only where that is asked for."""

import os
from pathlib import Path

from onehop.base.errors import CheckpointError, ConfigError
from onehop.formats.folder import CONFIG, GGUF

FORMATS = ("hf", "onehop", "gguf")
RUN = ("recipe.toml", "checkpoints")  # what only a run's folder holds
MODEL = (CONFIG, "*.safetensors", f"*{GGUF}")
OVERWRITE = "--overwrite (in Python: overwrite=True)"


def check_name(target: str | Path, format: str | None) -> None:
    """Refuse an empty name, an unknown format, and a name that says another format than the one that is given."""
    if not str(target):
        raise ConfigError(f"a target without a name. Give a folder, or a file that ends in {GGUF}.")
    if format is not None and format not in FORMATS:
        raise CheckpointError(f"format={format!r} cannot be written. Use hf, onehop or gguf.")
    is_file = Path(target).suffix == GGUF
    if format == "gguf" and not is_file:
        raise ConfigError(
            f"format=gguf writes a file whose name ends in {GGUF}, not {target}. Name it {Path(target)}{GGUF}."
        )
    if format in ("hf", "onehop") and is_file:
        raise ConfigError(
            f"format={format} writes a folder, and {target} is the name of a GGUF file. Give another name."
        )


def check_run(folder: str | Path) -> None:
    """Refuse the folder of a run, whose record would tell of a model that is no longer there."""
    held = next((name for name in RUN if (Path(folder) / name).exists()), None)
    if held is not None:
        raise CheckpointError(f"{folder} holds a run ({held}), which another model there would spoil. Name another.")


def check_free(target: Path, *, overwrite: bool) -> None:
    """Refuse what is there: the folder of a run, or a link to nowhere, always; a file or a filled folder by itself."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() and not target.exists():
        raise CheckpointError(f"{target} is a link that leads nowhere. Remove it, or name another target.")
    is_folder = target.is_dir()
    if is_folder != (target.suffix != GGUF):
        need = "a file" if is_folder else f"a folder, or a file that ends in {GGUF}"
        raise CheckpointError(f"{target} is a {'folder' if is_folder else 'file'}. Name {need}.")
    if is_folder:
        check_run(target)
    if overwrite:
        return
    if not is_folder:
        raise CheckpointError(f"{target} is there already. Name another file, or replace it: {OVERWRITE}.")
    if any(found for pattern in MODEL for found in target.glob(pattern)):
        raise CheckpointError(f"{target} holds a model already. Name another folder, or replace it: {OVERWRITE}.")
    if (other := next(iter(sorted(target.iterdir())), None)) is not None:
        raise CheckpointError(
            f"{target} holds other files ({other.name}). Name a folder that is new or empty, or write among them: "
            f"{OVERWRITE}."
        )
