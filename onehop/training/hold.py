"""One run at a time in a folder: a lock that the system lets go when the process ends, however it ends."""

import errno
import os
import platform
import re
import sys
import threading
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType

from onehop.base.errors import ConfigError
from onehop.base.files import disk_errors

if sys.platform != "win32":
    import fcntl

FILE = ".lock"  # there while a run is; one that a kill has left holds nothing
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Hold:
    """The folder `out` for one run, from the first `with` to the end of the last: they may be nested.

    Raises ConfigError where another run has it, of this process or another. Readers ask for nothing. Where the system
    or the disk knows no locks, nobody is refused.
    """

    def __init__(self, out: Path):
        self.out, self.file = out, out / FILE
        self._depth, self._turn = 0, threading.Lock()
        self._opened: TextIOWrapper | None = None

    def __enter__(self) -> "Hold":
        with self._turn:
            if not self._depth:
                self._take()
            self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._turn:
            self._depth -= 1
            if not self._depth:
                self._let_go()

    def _take(self) -> None:
        with disk_errors(self.file):
            self.out.mkdir(parents=True, exist_ok=True)
            while self._opened is None:
                with ExitStack() as stack:
                    opened = stack.enter_context(open(self.file, "a+", encoding="utf-8"))
                    if not _locked(opened):
                        raise ConfigError(
                            f"another run is going on in {self.out}{_whose(opened)}: wait for it, or stop it, or set "
                            "out=OTHER."
                        )
                    if _is(opened, self.file):  # the run before may have let it go after it was opened here
                        opened.truncate(0)
                        opened.write(f"process {os.getpid()} on {platform.node()}")
                        opened.flush()
                        self._opened, _ = opened, stack.pop_all()

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with opened, suppress(OSError):  # what stays there holds nothing
                if _is(opened, self.file):
                    self.file.unlink()


def _locked(opened: TextIOWrapper) -> bool:
    """Whether the lock is ours now, or there are none."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True


def _is(opened: TextIOWrapper, file: Path) -> bool:
    """Whether an open file is still the one of its name."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    except OSError:
        return False


def _whose(opened: TextIOWrapper) -> str:
    """The process that holds the lock, as it has written it there, in brackets."""
    opened.seek(0)
    told = re.fullmatch(r"(process \d+)( on .+)", opened.read(500))
    if told is None:
        return ""
    return f" ({told[1]}{'' if told[2] == f' on {platform.node()}' else told[2]})"
