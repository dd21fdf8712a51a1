"""Writing so that a reader sees the old file or the new one, never half of one."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onehop.base.errors import OnehopError


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    path = Path(path)
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~_umask())
            _sync(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    path = Path(path)
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield temporary
            os.chmod(temporary, 0o777 & ~_umask())
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync(file)
            _take_place(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(temporary: Path, path: Path) -> None:
    """Rename a finished folder over `path`; an existing one is moved aside first and restored if the rename fails."""
    if not path.exists():
        os.replace(temporary, path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    os.replace(path, aside / "was")
    try:
        os.replace(temporary, path)
    except OSError:
        os.replace(aside / "was", path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Say what a full, read-only or forbidden disk means in one line."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full. Free some space or write elsewhere",
            errno.EDQUOT: "the disk quota is used up. Free some space or write elsewhere",
            errno.EACCES: "no permission to write there. Choose another place",
            errno.EROFS: "the file system is read-only. Choose another place",
            errno.ENOTDIR: "a part of that path is a file, not a folder. Choose another place",
        }
        if error.errno in reasons:
            raise OnehopError(f"cannot write {path}: {reasons[error.errno]}.") from error
        raise
