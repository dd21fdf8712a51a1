"""What every test shares: one torch thread (tests run side by side), no display, and no waiting for a network."""

import os

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that reaches for the hub fails at once
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded, which is later


@pytest.fixture(autouse=True)
def _no_leftovers_between_tests(monkeypatch, tmp_path):
    """Whatever a test writes without saying where lands in its own folder."""
    monkeypatch.chdir(tmp_path)
