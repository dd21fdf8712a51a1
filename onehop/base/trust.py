"""What a folder from somewhere else may not do to its reader: lead out of itself, or be read without end."""

from pathlib import Path

MAX_JSON = 100_000_000  # bytes; the largest published tokenizer.json has 35 MB


def leads_out(folder: Path) -> Path | None:
    """A file of the folder that is a link to somewhere outside it or to nowhere, in circles.

    The cache of the hub is made of links: snapshots/REVISION/file -> blobs/HASH of the same model, which are inside.
    """
    folder = folder.resolve()
    homes = [folder]
    if folder.parent.name == "snapshots":
        homes.append(folder.parent.parent / "blobs")
    for file in sorted(folder.iterdir()):
        if file.is_symlink() and not any(_end(file).is_relative_to(home) for home in homes):
            return file
    return None


def _end(link: Path) -> Path:
    """Where a link leads; the root, which no folder holds, for one that runs in circles."""
    try:
        return link.resolve()
    except (RuntimeError, OSError):
        return Path(link.anchor)


def too_large(file: Path) -> str | None:
    """What is wrong with a JSON file that is larger than any honest one."""
    size = file.stat().st_size
    return f"it has {size} bytes, more than {MAX_JSON}" if size > MAX_JSON else None
