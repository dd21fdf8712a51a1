"""Differences paired by seed, and Student's interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onehop.training.paired import difference, quantile, within

# Two-sided 95 %, from Abramowitz and Stegun, table 26.10, to the four digits that they print.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("freedom", "t"), TABLE.items())
def test_the_quantiles_are_those_of_the_printed_table(freedom, t):
    assert quantile(0.95, freedom) == pytest.approx(t, abs=6e-4)  # half of the last digit


@given(st.floats(0.01, 50))
def test_the_share_within_t_has_its_closed_forms_for_one_and_two_degrees_of_freedom(t):
    assert within(t, 1) == pytest.approx(2 / math.pi * math.atan(t), rel=1e-12)  # Cauchy
    assert within(t, 2) == pytest.approx(t / math.sqrt(2 + t * t), rel=1e-12)


def test_a_difference_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, so the interval is 2 ± 4.3027 / √3."""
    found = difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.mean, found.n) == (2.0, 3)
    assert found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.verdict == "undecided"


def test_pairs_decide_what_means_cannot():
    """The seeds differ by more than the recipes, but every pair says the same."""
    base = {0: 1.0, 1: 2.0, 2: 3.0}
    assert difference({0: 0.9, 1: 1.9, 2: 2.91}, base).verdict == "better"
    assert difference({0: 1.1, 1: 2.1, 2: 3.09}, base).verdict == "worse"


def test_one_seed_decides_nothing_and_seeds_that_one_lacks_do_not_count():
    assert difference({0: 1.0}, {0: 2.0, 1: 5.0}).verdict == "undecided"
    assert difference({0: 1.0}, {0: 2.0}).low is None
    assert difference({3: 1.0}, {0: 2.0}) is None
