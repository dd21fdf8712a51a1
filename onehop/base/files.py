"""Writing so that a reader sees the old file or the new one, never half of one."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onehop.base.errors import OnehopError

_FULL = "the disk is full. Free some space or write elsewhere"
_REASONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota is used up. Free some space or write elsewhere",
    errno.EFBIG: "the file would be larger than this disk or account allows. Write elsewhere",
    errno.EACCES: "no permission to write there. Choose another place",
    errno.EPERM: "no permission to write there. Choose another place",
    errno.EROFS: "the file system is read-only. Choose another place",
    errno.ENOTDIR: "a part of that path is a file, not a folder. Choose another place",
    errno.EEXIST: "a part of that path is a file, not a folder. Choose another place",
    errno.EISDIR: "that is a folder. Name a file",
    errno.ELOOP: "a part of that path is a loop of links. Choose another place",
    errno.ENAMETOOLONG: "that name is too long. Choose a shorter one",
}

_LOST = "a part of that path is a link that leads nowhere. Choose another place"
_CUT = "the disk is full, or the file would be larger than allowed. Free some space or write elsewhere"


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Write `data` to `path`, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def append(path: str | Path, text: str) -> None:
    """Add `text` to the end of a file, which is made if it is missing; where that fails, the file stays as it was."""
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            end, left = file.tell(), memoryview(text.encode())
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """An empty temporary file beside `path` that takes its place when the block ends well, and vanishes if it does not.

    It keeps the suffix of `path`, by which some writers choose a format.
    """
    path = Path(path)
    temporary = _beside(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well, and vanishes when it does not.

    A folder that stands there is replaced as a whole; a file that stands there is refused.
    """
    path = Path(path)
    temporary = _beside(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_a_file(path)
        try:
            temporary.mkdir()
            yield temporary
            for inner in (*temporary.rglob("*"), temporary):
                if inner.exists():  # a link may lead nowhere
                    _sync(inner)
            _take_place(temporary, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def broken_link(path: Path) -> Path | None:
    """The link on the way to `path`, or `path` itself, that leads nowhere: to what is missing, or round in a circle."""
    return next((place for place in (path, *path.parents) if place.is_symlink() and not place.exists()), None)


def real(path: Path) -> Path:
    """The absolute path without links; a link that leads round in a circle stays in it."""
    return Path(os.path.realpath(path))


def _beside(path: Path) -> Path:
    """A name in the same folder (a rename must not cross file systems) that nobody else uses."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def _refuse_a_file(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise OnehopError(f"cannot write the folder {path}: a file of that name is there. Choose another place.")


def _take_place(temporary: Path, path: Path) -> None:
    """Rename a finished folder over `path`; an existing one is moved aside first and restored if the rename fails."""
    if not path.exists():
        os.replace(temporary, path)
        return
    aside = _beside(path)
    os.replace(path, aside)
    try:
        os.replace(temporary, path)
    except OSError:
        os.replace(aside, path)
        raise
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)


def sync(path: str | Path) -> None:
    """Wait until the disk has what was written to a file, or the names in a folder."""
    with disk_errors(Path(path)):
        _sync(Path(path))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Say what a full, read-only or forbidden disk means in one line; an error about another place passes unchanged."""
    try:
        yield
    except OSError as error:
        why = _why(error, path)
        if why is not None:
            raise OnehopError(f"cannot write {path}: {why}.") from error
        raise
    except OnehopError:
        raise
    except Exception as error:
        told = re.search(r"(?:os error|code:) (\d+)", str(error))  # as writers in Rust tell it
        reason = _REASONS.get(int(told[1])) if told else None
        if reason is not None:
            raise OnehopError(f"cannot write {path}: {reason}.") from error
        raise


def _why(error: OSError, path: Path) -> str | None:
    """What an error means for a reader who knows `path` alone; None where it is about another place."""
    if error.errno is None and re.search(r"requested and \d+ written", str(error)):  # as numpy tells it
        return _CUT
    if not _is_about(error, path):
        return None
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENOENT) and broken_link(path) is not None:
        return _LOST
    if error.errno in _REASONS:
        return _REASONS[error.errno]
    temporary = rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}"
    named = Path(os.fsdecode(error.filename or ""))
    is_ours = any(re.fullmatch(temporary, part) for part in named.parts)
    return f"{error.strerror}. Choose another place" if is_ours else None


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error names a place on the way to `path`, beside it or below it, or names none (a failed write)."""
    if error.filename is None:
        return True
    named = Path(os.path.abspath(os.fsdecode(error.filename)))
    folder = Path(os.path.abspath(path)).parent
    return named == folder or folder in named.parents or named in folder.parents
