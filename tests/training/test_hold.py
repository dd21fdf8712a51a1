"""Of two runs in one folder the second is refused, in this process and in another, however the first one ends."""

import errno
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

import onehop
from onehop.base.errors import ConfigError
from onehop.training import Trainer, hold, saving, session
from onehop.training.compare import compare
from onehop.training.hold import FILE, Hold
from tests.training.small_runs import recipe

HOLDER = """
import sys
from pathlib import Path
from onehop.training.hold import Hold

with Hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(out):
    """One that holds a folder until it is killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def is_free(folder):
    """Whether a run could begin there."""
    try:
        with Hold(folder / "out"):
            return True
    except ConfigError:
        return False


def files(folder):
    """Every file of a run by name and time, but the lock."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != FILE}


def test_what_another_process_runs_is_refused_and_left_alone_until_it_is_killed(tmp_path):
    onehop.train(recipe(tmp_path))
    before = files(tmp_path)
    with another_process(tmp_path / "out") as other:
        for how in ({"resume": True}, {"fresh": True}):
            with pytest.raises(ConfigError) as told:
                onehop.train(recipe(tmp_path, steps=8), **how)
            assert str(told.value) == (
                f"another run is going on in {tmp_path / 'out'} (process {other.pid}): wait for it, or stop it, or set "
                "out=OTHER."
            )
        onehop.load(tmp_path / "out")
        assert files(tmp_path) == before
    assert (tmp_path / "out" / FILE).exists()  # a kill leaves it
    onehop.train(recipe(tmp_path, steps=8), resume=True)
    assert not (tmp_path / "out" / FILE).exists()


def test_a_new_folder_that_another_process_has_made_stays(tmp_path):
    with another_process(tmp_path / "out"):
        with pytest.raises(ConfigError, match="another run is going on"):
            onehop.train(recipe(tmp_path))
        assert [path.name for path in (tmp_path / "out").iterdir()] == [FILE]


def test_a_second_trainer_is_refused_while_the_first_takes_steps(tmp_path):
    """A loop that was left, ended or failed lets the folder go."""
    first = onehop.steps(recipe(tmp_path))
    next(first).trainer.save()
    with pytest.raises(ConfigError, match=rf"another run is going on in .*out \(process {os.getpid()}\)"):
        Trainer(recipe(tmp_path), resume=True)
    first.close()
    again = Trainer(recipe(tmp_path), resume=True)
    assert [result.step for result in again.steps()] == [2, 3, 4, 5, 6]
    for step in onehop.steps(recipe(tmp_path), resume=True):
        assert not is_free(tmp_path)
        if step.step == 3:
            break
    assert is_free(tmp_path)


def test_a_run_holds_its_folder_from_its_making_to_its_report_and_no_longer(tmp_path, monkeypatch):
    seen = []

    def watched(name):
        real = getattr(session.Session, name)

        def call(self, *args):
            seen.append((name, is_free(tmp_path)))
            return real(self, *args)

        monkeypatch.setattr(session.Session, name, call)

    for name in ("_introduce", "_measure", "_examine", "_conclude"):
        watched(name)
    run = onehop.train(recipe(tmp_path))
    assert seen == [("_introduce", False), ("_measure", False), ("_examine", False), ("_conclude", False)]
    assert is_free(tmp_path)  # though the run is still there
    assert run.step == 6


@pytest.mark.parametrize("fails_in", ["_introduce", "_after_step"])
def test_a_run_that_fails_lets_its_folder_go(tmp_path, monkeypatch, fails_in):
    def failing(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(session.Session, fails_in, failing)
    with pytest.raises(ZeroDivisionError) as kept:
        onehop.train(recipe(tmp_path))
    assert is_free(tmp_path)
    del kept  # its frames were there until now


def test_a_refused_recipe_lets_its_folder_go(tmp_path):
    Trainer(recipe(tmp_path)).save()
    with pytest.raises(ConfigError, match="cannot be resumed") as kept:
        Trainer(recipe(tmp_path, seed=3), resume=True)
    assert is_free(tmp_path)
    del kept


def test_a_save_in_the_background_holds_the_folder_until_it_is_done(tmp_path, monkeypatch):
    real, reached = saving.write_native, threading.Event()

    def patient(*args, **more):
        assert reached.wait(60)
        return real(*args, **more)

    trainer = Trainer(recipe(tmp_path))
    monkeypatch.setattr(saving, "write_native", patient)
    began = threading.Event()
    real_write = trainer.checkpoints.write
    monkeypatch.setattr(trainer.checkpoints, "write", lambda *a, **more: (began.set(), real_write(*a, **more)))
    trainer.save(background=True)
    assert began.wait(60)
    assert not is_free(tmp_path)
    reached.set()
    trainer.writer.wait()
    assert is_free(tmp_path)


def test_a_comparison_holds_its_folder(tmp_path):
    with another_process(tmp_path / "out"), pytest.raises(ConfigError, match="another run is going on"):
        compare([], out=tmp_path / "out")


def test_a_disk_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def unknown(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(hold.fcntl, "flock", unknown)
    with Hold(tmp_path / "out"), Hold(tmp_path / "out"):
        pass


def test_a_lock_file_that_its_run_removed_after_it_was_opened_is_none(tmp_path, monkeypatch):
    """Else two would hold: one the file that is gone, the other a new one of its name."""
    real, first = hold._locked, Hold(tmp_path)
    first.__enter__()
    calls = []

    def late(opened):
        calls.append(opened)
        if len(calls) == 1:
            first.__exit__(None, None, None)
        return real(opened)

    monkeypatch.setattr(hold, "_locked", late)
    with Hold(tmp_path):
        assert len(calls) == 2
        with pytest.raises(ConfigError, match="another run is going on"), Hold(tmp_path):
            pass
