"""Where the measurement of this machine is kept, beside the caches of other tools. Loads no torch."""

import json
import tempfile
from pathlib import Path
from typing import Any

from onehop.base.errors import ConfigError
from onehop.base.files import atomic_write


def place() -> Path:
    """~/.cache/onehop/machine.json"""
    return Path.home() / ".cache" / "onehop" / "machine.json"


def load() -> dict[str, Any] | None:
    """What was measured, or None where nothing was. Raises ConfigError for a damaged file."""
    file = place()
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text())
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged ({error}). Repeat onehop plan --measure.") from error
    return found


def check() -> None:
    """Whether a measurement could be kept, before it is made. Raises OSError."""
    folder = place().parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def keep(measured: dict[str, Any]) -> Path:
    """Write a measurement down."""
    file = place()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(measured, indent=1) + "\n")
    return file
