"""A model's folder, seen without its weights: whose layout it is, and its config. No torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onehop.base.errors import CheckpointError, ConfigError
from onehop.base.trust import leads_out, too_large
from onehop.config.model import ModelConfig
from onehop.config.read import model_from_dict
from onehop.formats.family import family_for, text_part
from onehop.formats.gguf import Header, architecture_of, read_config, read_model
from onehop.formats.inside import Whole
from onehop.formats.layout import Family
from onehop.formats.table import Row

CONFIG, GGUF = "config.json", ".gguf"


@dataclass(frozen=True)
class Described:
    """What a folder's config.json says, or a GGUF file's header. `family` is None for onehop's own folders.

    `whole` is the larger model of which `config` and `family` are the text part.
    """

    folder: Path  # or the file
    kind: Literal["onehop", "hf", "gguf"]
    config: ModelConfig
    family: Family | None
    raw: dict[str, Any]
    whole: Whole | None = None
    header: Header | None = None  # of a GGUF file

    def tensors(self, names: Iterable[str]) -> Sequence[Row]:
        """The table that holds for a file with these tensor names."""
        if self.whole is not None:
            return self.whole.tensors(names)
        return () if self.family is None else self.family.tensors_of(names)


def describe(folder: str | Path, *, parts: Iterable[str | Path] = ()) -> Described:
    """Read the config of a model's folder, or of a GGUF file.

    `parts` are the user's own files for onehop's folders that need them.

    Raises CheckpointError for a folder without a config.json, and for every key that cannot be honoured.
    """
    folder = Path(folder)
    if folder.suffix == GGUF and folder.is_file():
        header = read_model(folder)
        return Described(folder, "gguf", read_config(header), architecture_of(header), {}, header=header)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(_no_config(folder))
    if (link := leads_out(folder)) is not None:
        raise CheckpointError(
            f"{link} is a link that leads out of its folder. Where you trust it, put the file itself there instead."
        )
    raw = read_json(folder / CONFIG)
    if "model_type" not in raw and "d_model" in raw:
        try:
            return Described(folder, "onehop", model_from_dict(raw, parts=parts), None, raw)
        except ConfigError as error:
            raise ConfigError(f"{folder / CONFIG}: {error}") from error
    try:
        text, whole = text_part(raw)
        family = family_for(text)
        return Described(folder, "hf", family.read_config(text), family, raw, whole)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError where it is damaged."""
    try:
        if (wrong := too_large(file)) is not None:
            raise ValueError(wrong)
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{file} is not readable JSON ({error}). Get it again from its source.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no JSON object. Get it again from its source.")
    return found


def _no_config(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder. Give a folder that holds config.json and model.safetensors."
    return (
        f"{folder} holds no config.json, so it is no model. Give a folder that holds config.json and "
        "model.safetensors, or a GGUF file."
    )
