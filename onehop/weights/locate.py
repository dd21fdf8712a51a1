"""From what a user calls MODEL to a folder on this disk."""

import re
from pathlib import Path
from typing import Any

from onehop.base.errors import CheckpointError, did_you_mean
from onehop.base.shipped import shipped, shipped_names
from onehop.formats.folder import CONFIG, GGUF
from onehop.weights.gguf import pick
from onehop.weights.safetensors_files import CONVERT, INDEX, SINGLE

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "spiece.model", "*.tiktoken"]
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")


def locate(path: str | Path) -> Path:
    """The folder of a model, or its GGUF file, on this disk.

    Given a path, a name that ships with onehop, or a hub name (from the local cache, or fetched). In a folder without a
    config.json a GGUF file is taken, as `gguf.pick` has it.

    A hub name may end in @revision (a branch, a tag or a commit). huggingface_hub's own settings hold: the cache, the
    token, working offline. Raises CheckpointError, in one line, for what is none of these.
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


def _from_hub(given: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, _, named = given.partition("@")
    options: dict[str, Any] = {"revision": named or None, "allow_patterns": WANTED}
    try:
        folder = Path(snapshot_download(name, local_files_only=True, **options))
        if _has_weights(folder):
            return folder
    except LocalEntryNotFoundError:
        pass  # not in the cache: ask the hub
    except HFValidationError as error:
        raise CheckpointError(f"{given} is no folder here and no hub name: {error} Check the name.") from error
    try:
        return _with_weights(Path(snapshot_download(name, **options)), given)
    except GatedRepoError:
        reason = "its owner asks you to agree to terms on its page and to log in (hf auth login)"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or it is private (hf auth login)"
    except RevisionNotFoundError:
        reason = f"it has no revision {named}. Leave @{named} out for the newest"
    except LocalEntryNotFoundError:
        reason = "it is not in the local cache and the hub cannot be reached. Go online once"
    except (HfHubHTTPError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    raise CheckpointError(
        f"{given} is no folder here, and as a hub name it cannot be fetched: {reason}. Or give a local folder."
    )


def _with_weights(folder: Path, given: str) -> Path:
    """What was fetched, unless it is a model of pickles, whose weights were not."""
    if _has_weights(folder):
        return folder
    raise CheckpointError(
        f"{given} has no safetensors on the hub. Pickles (pytorch_model.bin) can run foreign code and are neither "
        f"fetched nor opened. Download that file, and convert it without running it: {CONVERT}"
    )


def _has_weights(folder: Path) -> bool:
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()
