"""The learning rate, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onehop.config.recipe import TrainConfig
from onehop.training.schedule import learning_rate, parts


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


def rates(**own):
    cfg = TrainConfig(**{"batch_size": 1, "lr": 1.0, "lr_end": 0.0, **own})
    return [learning_rate(i, cfg) for i in range(cfg.steps)]


def test_a_straight_line_and_none():
    assert rates(schedule="linear", steps=6, warmup=1) == pytest.approx([0.5, 1, 0.75, 0.5, 0.25, 0])
    assert rates(schedule="constant", steps=4, warmup=1, lr_end=0.1) == [0.5, 1, 1, 1]


@pytest.mark.parametrize(
    ("shape", "falling"),
    [
        ("linear", [0.75, 0.5, 0.25, 0]),
        ("cosine", [0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0]),  # cosines of 45, 90, 135 and 180 degrees
        ("sqrt", [0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0]),
    ],
)
@pytest.mark.parametrize("decay", [4, 0.4])
def test_wsd_stays_and_then_falls_in_its_last_steps(shape, falling, decay):
    got = rates(schedule="wsd", steps=10, warmup=1, decay=decay, decay_shape=shape)
    assert got == pytest.approx([0.5, 1, 1, 1, 1, 1, *falling], abs=1e-12)


def test_wsd_has_the_same_steps_before_its_decay_however_long_it_goes_on():
    """What the schedule is for: a run can be prolonged from before its decay."""
    short, long = (rates(schedule="wsd", steps=n, warmup=3, decay=5) for n in (20, 40))
    assert short[:15] == long[:15]


def test_wsd_whose_decay_has_no_room_decays_after_the_warm_up():
    assert rates(schedule="wsd", steps=4, warmup=2, decay=100) == pytest.approx([1 / 3, 2 / 3, 0.5, 0])


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 8), st.integers(1, 20))
def test_the_rows_of_a_step_grow_in_whole_micro_batches_and_never_shrink(micro, start, more, warmup):
    cfg = TrainConfig(
        steps=40, batch_size=(start + more) * micro, micro_batch=micro, batch_start=start * micro, batch_warmup=warmup
    )
    grown = [parts(i, cfg) for i in range(40)]
    assert grown == sorted(grown)
    assert grown[0] == start
    assert set(grown[warmup:]) == {start + more}


def test_rows_grow_in_a_line():
    cfg = TrainConfig(steps=9, batch_size=16, micro_batch=4, batch_start=4, batch_warmup=6)
    assert [4 * parts(i, cfg) for i in range(9)] == [4, 4, 8, 8, 12, 12, 16, 16, 16]
