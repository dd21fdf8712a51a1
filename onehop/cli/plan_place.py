"""Where the measurement of this machine is kept: beside the caches of other tools."""

import os
from pathlib import Path


def place() -> Path:
    """$XDG_CACHE_HOME/onehop/machine.json, or ~/.cache/onehop/machine.json."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "onehop" / "machine.json"
