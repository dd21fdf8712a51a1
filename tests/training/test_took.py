"""Where a run's time went: what the compiler took is no step, and what earlier calls took is not this one's."""

from types import SimpleNamespace

import pytest

from onehop.training.state import Progress
from onehop.training.took import Meter, Took


@pytest.fixture
def trainer():
    return SimpleNamespace(waited=0.0, progress=Progress(step=3, tokens=1000, seconds=100.0))


@pytest.fixture
def clock(monkeypatch):
    now = [50.0]
    monkeypatch.setattr("onehop.training.took.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_steps_the_compiler_and_the_rest_are_told_apart(trainer, clock):
    took = Took(trainer)
    trainer.progress, trainer.waited = Progress(step=5, tokens=1400, seconds=112.0), 10.0
    clock[0] += 15
    assert str(took).startswith("2 s in steps, 10 s compiling, 3 s for all besides")
    assert took.tokens_per_s == 200
    trainer.waited = 0.0
    assert str(took).startswith("12 s in steps, 3 s for all besides")


def test_a_call_that_takes_no_step_has_the_rate_of_the_run(trainer, clock):
    assert Took(trainer).tokens_per_s == 10
    trainer.progress = Progress()
    assert Took(trainer).tokens_per_s is None


def test_a_rate_is_that_since_the_last_look_without_the_compiler(trainer, clock):
    meter = Meter(trainer)
    meter.count(300)
    meter.count(100)
    clock[0], trainer.waited = 60.0, 8.0
    meter.look()
    assert meter.rate == 200
    meter.restart()
    meter.count(50)
    clock[0] = 70.0
    meter.look()
    assert meter.rate == 5
