"""The checkpoints of a run, `checkpoints/step-00000120` and so on: each complete or absent, the newest and the best.

A checkpoint is a onehop folder that everything else reads, with what training needs to go on beside the model:
`optimizer.safetensors` and `training.json`. `SHA256SUMS` covers every file of it; `sha256sum -c` reads it too.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any

from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.base.files import atomic_folder, disk_errors
from onehop.formats.safetensors_header import SINGLE
from onehop.weights.native import write_json
from onehop.weights.place import new_files
from onehop.weights.safetensors_files import write_tensors

FOLDER, BEST, SUMS = "checkpoints", "best", "SHA256SUMS"
TENSORS, ABOUT = "optimizer.safetensors", "training.json"
OWN = (TENSORS, ABOUT, SUMS)  # files that only training reads
_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)


class Checkpoints:
    """The folder `checkpoints` of a run. `keep`: how many of the newest stay, beside the best."""

    def __init__(self, out: Path, *, keep: int):
        self.out, self.folder, self.keep = out, out / FOLDER, keep

    def newest_first(self) -> list[Path]:
        """All that are there, whole or damaged; of one step the one written last comes first."""
        found = [path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)]
        return sorted(found, key=_order, reverse=True)

    def newest_whole(self) -> tuple[Path, list[str]]:
        """The newest checkpoint whose checksums are right, and what is wrong with each newer one.

        Raises CheckpointError where there is none.
        """
        faults: list[str] = []
        for path in self.newest_first():
            fault = damage(path)
            if fault is None:
                return path, faults
            faults.append(f"{path} is damaged ({fault})")
        if faults:
            raise CheckpointError(f"{faults[0]}, and no whole one is left. Restore it, or start over with --fresh.")
        raise CheckpointError(f"{self.out} holds nothing to resume: {FOLDER} is missing. Start without --resume.")

    def write(
        self,
        step: int,
        write_model: Callable[[Path], None],
        *,
        tensors: Mapping[str, Tensor],
        about: Mapping[str, Any],
        best_step: int | None,
    ) -> None:
        """Add a checkpoint, show its model as that of the run, and let go of those that are no longer kept.

        Whatever was there before stays until the new one is on the disk as a whole.
        """
        path = self._free_name(step)
        with disk_errors(path):
            with atomic_folder(path) as temporary:
                write_model(temporary)
                write_tensors(temporary / TENSORS, tensors)
                write_json(temporary / ABOUT, about)
                _write_sums(temporary)
            self.show(path)
            self._let_go(path, best_step)

    def show(self, path: Path) -> None:
        """Let the run's folder hold this checkpoint's model: the same files, by links where the disk has them."""
        with disk_errors(self.out / path.name), new_files(self.out) as new:
            for name in _files(path):
                if name not in OWN:
                    (new / name).parent.mkdir(parents=True, exist_ok=True)
                    _link(path / name, new / name)

    def set_aside(self, upto: Path) -> None:
        """Rename the (damaged) checkpoints that are newer than `upto`, and remove what killed saves left half-done."""
        for path in self.newest_first():
            if _order(path) > _order(upto):
                os.replace(path, path.with_name(f"damaged-{path.name}-{secrets.token_hex(2)}"))
        self.clean()

    def clean(self) -> None:
        """Remove what a save that was killed left half-written."""
        for path in self.folder.glob(".*"):
            if re.fullmatch(r"\.(step-.+|best)\.[0-9a-f]{8}", path.name):
                _remove(path)

    def remove(self) -> None:
        """Forget all of them; what else lies in their folder stays."""
        self.clean()
        for path in self.folder.glob("*"):
            if path.name == BEST or _NAME.fullmatch(path.name) or re.fullmatch(r"damaged-step-.+", path.name):
                _remove(path)
        with suppress(OSError):
            self.folder.rmdir()

    def _free_name(self, step: int) -> Path:
        """A second checkpoint of one step gets a name of its own: no moment is without one of the two."""
        taken = [order[1] for order in map(_order, self.newest_first()) if order[0] == step]
        return self.folder / (f"step-{step:08d}-{max(taken) + 1}" if taken else f"step-{step:08d}")

    def _let_go(self, newest: Path, best_step: int | None) -> None:
        last_of: dict[int, Path] = {}
        for path in self.newest_first():
            last_of.setdefault(_order(path)[0], path)
        steps = [step for step in last_of if step <= _order(newest)[0]][: self.keep]
        kept = {last_of[step] for step in (*steps, best_step) if step in last_of}
        for path in self.newest_first():
            if path not in kept:
                gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
                os.replace(path, gone)  # a checkpoint that is half removed would look like a damaged one
                _remove(gone)
        for step, path in last_of.items():
            plain = self.folder / f"step-{step:08d}"
            if path in kept and path != plain:
                os.replace(path, plain)
        if best_step in last_of:
            self._point_at(self.folder / f"step-{best_step:08d}")

    def _point_at(self, path: Path) -> None:
        """`checkpoints/best`: a link, where the disk has links."""
        temporary, aside = (self.folder / f".{BEST}.{secrets.token_hex(4)}" for _ in range(2))
        best = self.folder / BEST
        try:
            temporary.symlink_to(path.name)
            if best.is_dir() and not best.is_symlink():  # a run that was copied with its links followed: scp -r, cp -L
                os.replace(best, aside)
                _remove(aside)
            os.replace(temporary, best)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise


class Writer:
    """Runs one piece of work at a time beside the training thread; what goes wrong there is raised here.

    A context manager: its block ends when all is done.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._job: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; the one before is waited for first."""
        self.wait()
        self._job = self._pool.submit(work)

    @property
    def busy(self) -> bool:
        """Whether something is being done."""
        return self._job is not None and not self._job.done()

    def check(self) -> None:
        """Raise what has gone wrong so far, without waiting."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Until all is done. Raises what went wrong."""
        job, self._job = self._job, None
        if job is not None:
            job.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(Exception) if error is not None else nullcontext():  # the first error is the one to tell
            self.wait()


def remove_leftovers(out: Path) -> None:
    """Remove what a killed write left in a run's folder, by the names that `base.files` and `weights.place` give."""
    for path in (*out.glob(".*"), *(out / "data").glob(".*")):
        file = path.is_file() and re.fullmatch(r"\..+\.[0-9a-f]{8}(\.\w+)?", path.name)
        if file or re.fullmatch(r"\.?\.saving(\.[0-9a-f]{8})?|\.[0-9a-f]{16}\.[0-9a-f]{8}", path.name):
            _remove(path)


def read_about(path: Path) -> dict[str, Any]:
    """What a whole checkpoint holds beside tensors."""
    about: dict[str, Any] = json.loads((path / ABOUT).read_text())
    return about


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint: a file that is missing or differs from its checksum; None for a whole one."""
    try:
        wanted = dict(_read_sums(path / SUMS))
        for name in (SINGLE, TENSORS, ABOUT):
            if name not in wanted:
                return f"{SUMS} does not list {name}"
        for name, digest in wanted.items():
            if _digest(path / name) != digest:
                return f"{name} differs from its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    return None


def _order(path: Path) -> tuple[int, int]:
    """Step and turn of a checkpoint's name."""
    found = _NAME.fullmatch(path.name)
    assert found, path
    return int(found[1]), int(found[2] or 0)


def _files(folder: Path) -> list[str]:
    """Every file below a folder, by its path from there."""
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _write_sums(folder: Path) -> None:
    lines = [f"{_digest(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / SUMS).write_text("".join(lines))


def _read_sums(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text().splitlines():
        digest, name = line.split("  ")
        if len(digest) != 64 or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise ValueError(f"{file.name} is no list of checksums")
        yield name, digest


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(file, to)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
