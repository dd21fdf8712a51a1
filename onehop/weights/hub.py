"""Models of the Hugging Face hub: from the local cache or, where they are not there, fetched by huggingface_hub.

Its own settings hold: the cache, the token, working offline. Only what is read is fetched: safetensors, or one GGUF
file with all its parts, and the texts beside them.
"""

import glob
from pathlib import Path
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.base.hub import HubName, why_not_fetched
from onehop.formats.gguf.choose import PREFERRED, UNNAMED, candidates, choose, label_of, spelt
from onehop.formats.gguf.split import parts_of
from onehop.formats.safetensors_header import INDEX, SINGLE, weight_map
from onehop.weights.safetensors_files import CONVERT

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "spiece.model", "*.tiktoken"]


def from_hub(asked: HubName) -> Path:
    """The folder of a model of safetensors, or a GGUF file. Raises CheckpointError with the reason in one line."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return _cached(asked) or _fetched(asked)
    except HFValidationError as error:
        raise CheckpointError(f"{asked.given} is no folder here and no hub name: {error} Check the name.") from error
    except (ValueError, OSError) as error:  # the hub's own are kinds of OSError
        unreached = isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled))
        second = _second_best(asked) if unreached else None
        if second is not None:
            return second
        reason = why_not_fetched(error, revision=asked.revision)
    raise CheckpointError(
        f"{asked.given} is no folder here, and as a hub name it cannot be fetched: {reason}. Or give a local folder."
    )


def _cached(asked: HubName) -> Path | None:
    """What was asked for, if it is in the cache whole; without a kind, safetensors or the GGUF that is preferred."""
    folder, files = _in_cache(asked)
    if folder is None:
        return None
    if asked.kind is None and _has_weights(folder, whole=True):
        return folder
    wanted = spelt(asked.kind or PREFERRED[0])
    found = [name for name in files if label_of(name) == wanted]
    return folder / found[0] if len(found) == 1 else None


def _second_best(asked: HubName) -> Path | None:
    """Where the hub cannot be asked and no kind was: what the cache has."""
    folder, files = _in_cache(asked)
    if folder is None or not files or asked.kind is not None:
        return None
    return folder / choose(_kinds(files), None, where=asked.given)


def _in_cache(asked: HubName) -> tuple[Path | None, list[str]]:
    """The model's folder in the cache, and its GGUF files of which no part is missing."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _snapshot(asked, WANTED, local_files_only=True)
    except LocalEntryNotFoundError:
        return None, []
    names = candidates(file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf"))
    return folder, [name for name in names if all(part.is_file() for part in parts_of(folder / name))]


def _fetched(asked: HubName) -> Path:
    if asked.kind is None:
        folder = _snapshot(asked, WANTED)
        if _has_weights(folder):
            return folder
    names = candidates(_listed(asked))
    if asked.kind is None and not names:
        raise CheckpointError(
            f"{asked.given} has no safetensors and no GGUF file on the hub. Pickles (pytorch_model.bin) can run "
            "foreign code and are neither fetched nor opened. Download that file, and convert it without running it: "
            f"{CONVERT}"
        )
    chosen = choose(_kinds(names), asked.kind, where=asked.given)
    folder = _snapshot(asked, [glob.escape(part.as_posix()) for part in parts_of(Path(chosen))])
    return folder / chosen


def _snapshot(asked: HubName, patterns: list[str], **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(asked.name, revision=asked.revision, allow_patterns=patterns, **options))


def _listed(asked: HubName) -> list[str]:
    from huggingface_hub import list_repo_files
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return list(list_repo_files(asked.name, revision=asked.revision))
    except OSError:
        raise
    except Exception as error:  # the HTTP library's own, where there is no network
        raise LocalEntryNotFoundError(str(error)) from error


def _kinds(names: list[str]) -> dict[str, tuple[str, ...]]:
    return {name: (label_of(name) or UNNAMED,) for name in names}


def _has_weights(folder: Path, *, whole: bool = False) -> bool:
    """Whether there are safetensors; whole: all of them, where fetching may have been broken off."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return (folder / SINGLE).is_file()
    return not whole or all((folder / name).is_file() for name in set(weight_map(folder / INDEX).values()))
