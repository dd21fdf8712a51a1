"""From what a user calls MODEL to a folder on this disk."""

import re
from pathlib import Path

from onehop.base.errors import CheckpointError, did_you_mean
from onehop.base.shipped import shipped, shipped_names
from onehop.formats.folder import CONFIG, GGUF
from onehop.weights.gguf import pick
from onehop.weights.safetensors_files import INDEX, SINGLE

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate(path: str | Path) -> Path:
    """The folder of a model, or its GGUF file, on this disk.

    Given a path, a name that ships with onehop, or a hub name (from the local cache, or fetched). In a folder without a
    config.json a GGUF file is taken, as `gguf.pick` has it. Raises CheckpointError for what is none of these.
    """
    given, place = str(path), Path(path)
    if place.is_dir():
        return place if (place / CONFIG).is_file() else pick(place) or place
    if place.suffix == GGUF:
        if not place.is_file():
            raise CheckpointError(f"{given} does not exist. Give a GGUF file, or a folder that holds a model.")
        return place
    if place.is_file():
        raise CheckpointError(f"{given} is a file. Give the folder that holds config.json and model.safetensors.")
    own = shipped("models", given)
    if own is not None:
        return own
    if HUB_NAME.fullmatch(given):
        return _from_hub(given)
    known = (
        f" Models that ship with onehop: {did_you_mean(given, shipped_names('models'))}"
        if shipped_names("models")
        else ""
    )
    raise CheckpointError(
        f"{given} is no folder, no hub name like 'org/model' and no model that ships with onehop.{known}"
    )


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=WANTED, local_files_only=True))
        if (folder / SINGLE).is_file() or (folder / INDEX).is_file():
            return folder
    except LocalEntryNotFoundError:
        pass  # not in the cache: ask the hub
    except HFValidationError as error:
        raise CheckpointError(f"{name} is no folder here and no hub name: {error} Check the name.") from error
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except GatedRepoError:
        reason = "its owner asks you to agree to terms on its page and to log in (hf auth login)"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private (hf auth login)"
    except LocalEntryNotFoundError:
        reason = "it is not in the local cache and the hub cannot be reached. Go online once"
    except (HfHubHTTPError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    raise CheckpointError(
        f"{name} is no folder here, and as a hub name it cannot be fetched: {reason}. Or give a local folder."
    )
