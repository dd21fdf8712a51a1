"""Parts of the user's own: a Python file that the user names is run, and adds its rows to the tables of kinds.

Only files that a user names are run: in a recipe, or as an argument. A model's folder may say which files it was made
with, but nothing in a folder is ever run because the folder says so.
"""

import hashlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from onehop.base.errors import ConfigError, OnehopError

_DONE: dict[Path, bytes] = {}  # file -> digest of what was run: an unchanged file runs once in a process


class _Fresh(SourceFileLoader):
    """Runs the text as it is now: no bytecode is read (its clock is too coarse for quick edits) or left behind."""

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError


def load_own(path: str | Path) -> None:
    """Run the file `path`, which calls `onehop.part(...)`. Raises ConfigError if it is missing or fails."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path}, a file with parts of your own, is not there. Give the path of a Python file.")
    file = file.resolve()
    digest = hashlib.sha256(file.read_bytes()).digest()
    if _DONE.get(file) == digest:
        return
    name = module_name(file)
    spec = importlib.util.spec_from_file_location(name, file, loader=_Fresh(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # classes look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        _restore(name, before)
        if isinstance(error, OnehopError) or not isinstance(error, Exception | SystemExit):
            raise
        raise ConfigError(f"{path}{_line(error, file)}: {type(error).__name__}: {error}") from error
    _DONE[file] = digest


def module_name(file: Path) -> str:
    """The module that a file of own parts becomes; two files of one name do not meet."""
    return f"onehop_own_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"


def _restore(name: str, before: object) -> None:
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before  # type: ignore[assignment]


def _line(error: BaseException, file: Path) -> str:
    """', line 12': the last line of the user's file that the error went through."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f", line {error.lineno}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""
