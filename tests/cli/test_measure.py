"""How the parts of a measured machine are brought to what whole models take."""

import pytest

from onehop.cli.measure import LEAST, fitted
from onehop.cost.roofline import Phase


def phase(multiplied, passed=0.0):
    return Phase(1, multiplied + passed, 0.0, 0.0, 0.0, passed)


def test_models_of_several_widths_tell_products_and_passes_apart():
    parts = [phase(2.0, 1.0), phase(20.0, 4.0), phase(100.0, 9.0)]
    taken = [1.2 * 2 + 3 * 1, 1.2 * 20 + 3 * 4, 1.2 * 100 + 3 * 9]
    assert fitted(list(zip(parts, taken, strict=True))) == pytest.approx((1.2, 3.0), rel=1e-4)


def test_where_nothing_goes_number_by_number_one_factor_is_left():
    assert fitted([(phase(2.0), 3.0), (phase(10.0), 15.0)]) == pytest.approx((1.5, 1.0), rel=1e-4)


def test_no_part_is_taken_to_run_much_quicker_in_a_model_than_alone():
    """Three models whose noise alone would give products half of their time, and passes the rest."""
    pairs = [(phase(91.5, 15.4), 138.9), (phase(380.0, 52.7), 461.1), (phase(841.3, 103.4), 1079.4)]
    products, passing = fitted(pairs)
    assert products == LEAST

    def off(passing):
        planned = [LEAST * (p.seconds - p.passed_s) + passing * p.passed_s for p, _ in pairs]
        return sum((taken / seconds - 1) ** 2 for seconds, (_, taken) in zip(planned, pairs, strict=True))

    assert off(passing) <= min(off(passing * 1.01), off(passing / 1.01))
    assert all(abs(taken / (LEAST * (p.seconds - p.passed_s) + passing * p.passed_s) - 1) < 0.1 for p, taken in pairs)
