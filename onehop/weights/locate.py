"""From what a user calls MODEL to a folder on this disk."""

import os
from pathlib import Path

from onehop.base.errors import CheckpointError, did_you_mean
from onehop.base.hub import HubName
from onehop.base.shipped import shipped, shipped_names
from onehop.formats.folder import CONFIG, GGUF
from onehop.formats.gguf.choose import pick
from onehop.weights.hub import from_hub


def locate(path: str | Path) -> Path:
    """The folder of a model, or its GGUF file, on this disk.

    Given a path, a name that ships with onehop, or a hub name (from the local cache, or fetched). In a folder without a
    config.json, and of a model on the hub without safetensors, a GGUF file is taken, as `choose` has it.

    A hub name may have @revision (a branch, a tag or a commit) behind it; and both a hub name and a folder :KIND, which
    says which of several GGUF files: org/model@main:Q8_0. Raises CheckpointError, in one line, for what is none of
    these.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"{path!r} names no model. Give a path or a name, as a text.")
    given, place = str(path), Path(path)
    if place.is_dir():
        return place if (place / CONFIG).is_file() else pick(place) or place
    if place.suffix == GGUF:
        if not place.is_file():
            raise CheckpointError(f"{given} does not exist. Give a GGUF file, or a folder that holds a model.")
        return place
    if place.is_file():
        raise CheckpointError(f"{given} is a file. Give the folder that holds config.json and model.safetensors.")
    folder, _, kind = given.rpartition(":")
    if folder and Path(folder).is_dir():
        found = pick(Path(folder), kind)
        assert found is not None, "a kind is found or refused"
        return found
    if folder and Path(folder).is_file():
        raise CheckpointError(f"{folder} is one file, so :{kind} has nothing to choose from. Leave it out.")
    own = shipped("models", given)
    if own is not None:
        return own
    asked = HubName.of(given)
    if asked is not None:
        return from_hub(asked)
    known = f" {did_you_mean(given, shipped_names('models'))}" if shipped_names("models") else ""
    raise CheckpointError(
        f"{given} is no folder, no hub name like 'org/model' and no model that ships with onehop.{known}"
    )
