"""Freed memory stays with the process while it trains, and goes back to the system afterwards."""

import subprocess
import sys
from contextlib import contextmanager

import pytest

from onehop.machine import heap
from onehop.machine.heap import keeping_freed_memory
from onehop.training import trainer
from onehop.training.trainer import Trainer
from tests.training.small_runs import recipe

PIECES, SIZE = 16, 8 << 20  # bytes

# Takes and frees the pieces three times: pages that the system handed out the third time, and memory held at the end.
COUNTING = f"""
import ctypes, resource, sys
from onehop.machine.heap import keeping_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def work():
    pieces = [libc.malloc({SIZE}) for _ in range({PIECES})]
    for piece in pieces:
        ctypes.memset(piece, 1, {SIZE})
    for piece in reversed(pieces):
        libc.free(piece)
with keeping_freed_memory(sys.argv[1] == "yes") as able:
    work(), work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    print(able, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())
"""


@pytest.mark.skipif(heap._glibc() is None, reason="the C library is not glibc")
def test_a_step_finds_the_memory_that_the_one_before_it_freed():
    said = {}
    for wanted in ("yes", "no"):
        done = subprocess.run([sys.executable, "-c", COUNTING, wanted], capture_output=True, text=True, check=True)
        said[wanted] = done.stdout.split()
    assert (said["yes"][0], said["no"][0]) == ("True", "False")
    pages = PIECES * SIZE / 4096
    assert int(said["yes"][1]) < pages / 100  # all of it was there
    assert int(said["no"][1]) > int(said["yes"][1])
    assert int(said["yes"][2]) < PIECES * SIZE / 2  # and was given back


def test_where_the_c_library_is_another_one_nothing_happens(monkeypatch):
    monkeypatch.setattr(heap, "_glibc", lambda: None)
    with keeping_freed_memory() as able:
        assert not able


def test_what_is_freed_goes_back_when_the_last_of_several_runs_ends(monkeypatch):
    calls = []

    class Libc:
        def mallopt(self, number, value):
            calls.append((number, value))
            return 1

        def malloc_trim(self, pad):
            calls.append("trim")

    monkeypatch.setattr(heap, "_glibc", Libc)
    first, second = keeping_freed_memory(), keeping_freed_memory()
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert "trim" not in calls
    second.__exit__(None, None, None)
    assert calls[-2:] == [(heap.TRIM_THRESHOLD, 2 * heap.LARGEST), "trim"]
    monkeypatch.setattr(Libc, "mallopt", lambda *args: 0)
    before = list(calls)
    with keeping_freed_memory() as able:
        assert not able
    assert calls == before


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch, platform):
    monkeypatch.setattr(heap.sys, "platform", platform)
    assert heap._glibc() is None


def test_a_run_on_a_cpu_keeps_it_from_its_first_step_to_its_last(tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def watched(wanted):
        seen.append(("in", wanted))
        yield wanted
        seen.append(("out", wanted))

    monkeypatch.setattr(trainer, "keeping_freed_memory", watched)
    seen.extend(result.step for result in Trainer(recipe(tmp_path, steps=3)).steps())
    assert seen == [("in", True), 1, 2, 3, ("out", True)]
