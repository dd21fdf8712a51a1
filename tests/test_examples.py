"""Each file in examples/ runs as it stands, is short enough to read at a glance, and does what it says."""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "train.py": ["step 20, validation loss", "step 30, validation loss"],
    "own_loop.py": ["step 20  loss", "validation loss"],
    "parts_alone.py": ["a block: (2, 10, 64)", "attention: (1, 5, 4, 16)", "a whole model: loss 0.0"],
    "own_part.py": ["validation loss", "rates", "passed kernel tiled = plain", "passed decoding from a growing cache"],
}


@functools.cache
def printed(name):
    """What an example prints; each is run once."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name)], cwd=folder, env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_is_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
    for words in SAYS[name]:
        assert words in printed(name)
    assert "not passed" not in printed(name)


def test_the_loop_of_ones_own_freezes_a_layer():
    """After step 10 the frozen layer has no gradient any more."""
    lines = [line for line in printed("own_loop.py").splitlines() if line.startswith("step ")]
    assert [("layers.0" in line, "layers.1" in line) for line in lines] == [(True, True)] * 2 + [(False, True)] * 2
