"""The learning rate, by hand."""

import pytest

from onehop.config.recipe import TrainConfig
from onehop.training.schedule import learning_rate


def test_it_rises_in_a_line_and_falls_by_half_a_cosine():
    cfg = TrainConfig(steps=9, batch_size=1, lr=0.5, lr_end=0.2, warmup=4)
    rising = [0.1, 0.2, 0.3, 0.4]  # fifths of 0.5
    # cosines of 0, 45, 90, 135 and 180 degrees between 0.5 and 0.1
    falling = [0.5, 0.3 + 0.2 * 2**-0.5, 0.3, 0.3 - 0.2 * 2**-0.5, 0.1]
    assert [learning_rate(i, cfg) for i in range(9)] == pytest.approx(rising + falling, abs=1e-12)


def test_it_stays_at_its_end_after_the_last_step():
    cfg = TrainConfig(steps=3, batch_size=1, lr=0.5, lr_end=0.2)
    assert learning_rate(50, cfg) == pytest.approx(0.1)


def test_a_run_shorter_than_its_warm_up_ends_while_it_rises():
    cfg = TrainConfig(steps=2, batch_size=1, lr=0.5, warmup=4)
    assert [learning_rate(i, cfg) for i in range(2)] == pytest.approx([0.1, 0.2])


def test_one_step_learns_at_the_full_rate():
    assert learning_rate(0, TrainConfig(steps=1, batch_size=1, lr=0.5)) == 0.5
