"""A run that is killed at random moments, inside saves too, and resumed each time, is the run that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onehop


def killed_and_whole(folder, *, seed, n_kills):
    """Let a process of its own train both runs -> how many lives were killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, Path(__file__).with_name("chaos.py"), folder, str(seed), str(n_kills)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def told(folder):
    """metrics.jsonl without what the clock says."""
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("tokens_per_s", "memory")} for row in rows]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("seed", "n_kills"), [pytest.param(1, 3, id="3 times"), pytest.param(0, 20, id="20 times", marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_and_resumed_equals_the_uninterrupted_one_bit_for_bit(tmp_path, seed, n_kills):
    """Losses, validation losses, alarms and expert loads of every step; samples; weights and moments at the end."""
    assert killed_and_whole(tmp_path, seed=seed, n_kills=n_kills) > n_kills // 2  # a life may end before its moment
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert [row["step"] for row in told(whole)] == list(range(1, 25))
    assert told(killed) == told(whole)
    for name in ("samples.txt", "model.safetensors", "checkpoints/step-00000024/optimizer.safetensors"):
        assert (killed / "out" / name).read_bytes() == (whole / "out" / name).read_bytes(), name
    for folder in ("out", "out/checkpoints", "out/data"):
        assert names(killed / folder) == names(whole / folder)  # nothing half-written is left
    onehop.load(killed / "out")
