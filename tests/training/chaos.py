"""Runs that are killed: a process that loads torch once and forks a life of the run for each kill.

python chaos.py FOLDER SEED N_KILLS: trains once without interruption into FOLDER/whole, and once into FOLDER/killed,
where each life but the last ends by SIGKILL, in turn after a random time and at a random operation on a file of a save.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import onehop
from onehop.training import session
from onehop.training.checkpoints import Checkpoints, damage
from tests.training.small_runs import recipe, sentences

STEPS, FILE_OPERATIONS = 24, 150
MODEL = {"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "bias"},
         "dropout": {"embed": 0.1, "residual": 0.1}}  # fmt: skip


def train(folder):
    """One life: from the newest checkpoint, if there is one, to the end."""
    wanted = recipe(
        folder, model=MODEL, steps=STEPS, micro_batch=2, log_every=1, eval_every=4, save_every=3, keep=2,
        sample_tokens=4, dead_after=3, spike=1.0,
    )  # fmt: skip
    there = bool(Checkpoints(folder / "out", keep=2).newest_first())
    onehop.train(wanted, resume=there, fresh=not there)


def die_at(operation):
    """Let this process kill itself at the n-th operation that a save makes on files, in whatever thread."""
    left, lock = [operation], threading.Lock()

    def counted(real):
        def call(*args, **more):
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in ("replace", "fsync", "link", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))


def life(folder, *, seconds=None, operation=None):
    """Fork a life, and end it after some seconds or at an operation (if it gets there) -> whether it was killed."""
    child = os.fork()
    if not child:
        try:
            if operation is not None:
                die_at(operation)
            train(folder)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "a life ended by an error"
    return os.WIFSIGNALED(status)


def main(folder, seed, n_kills):
    """Print how many lives were killed."""
    session.draw_losses = lambda *args, **more: None  # half of the time, and no state
    draw = random.Random(seed)
    for name in ("whole", "killed"):
        (folder / name).mkdir()
        (folder / name / "text.txt").write_text(sentences())
    began = time.monotonic()
    life(folder / "whole")
    length = time.monotonic() - began
    killed = 0
    for i in range(n_kills):
        how = {"operation": draw.randint(1, FILE_OPERATIONS)} if i % 2 else {"seconds": draw.uniform(0, length / 2)}
        killed += life(folder / "killed", **how)
        for path in Checkpoints(folder / "killed" / "out", keep=2).newest_first():
            assert damage(path) is None, damage(path)
    life(folder / "killed")
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
