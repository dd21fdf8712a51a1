"""Scaling laws: their optima are optima, published tables come out, and a fit recovers what made its points."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onehop.base.errors import ConfigError, DataError
from onehop.cost.fit import _check_falls, fit, points
from onehop.cost.scaling import LAWS, PF_DAY, Law, for_budget, for_model, for_serving, law, spread

PARAMETRIC = [found for found in LAWS if isinstance(found, Law)]


@pytest.mark.parametrize("found", PARAMETRIC, ids=lambda found: found.name)
@given(st.floats(16, 28))
def test_no_other_split_of_a_budget_has_a_lower_loss(found, exponent):
    flops = 10**exponent
    n, d = found.optimum(flops)
    assert 6 * n * d == pytest.approx(flops)
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert found.loss(n * factor, d / factor) > found.loss(n, d)


@pytest.mark.parametrize("found", LAWS, ids=lambda found: found.name)
@given(st.floats(16, 28))
def test_the_tokens_for_a_size_are_those_of_the_budget_whose_best_size_it_is(found, exponent):
    n, d = found.optimum(10**exponent)
    assert found.tokens_for(n) == pytest.approx(d, rel=1e-6)


def test_the_replication_gives_about_twenty_tokens_per_parameter_and_the_printed_constants_do_not():
    """Besiroglu et al. 2024, arXiv:2404.10102, section 4: Chinchilla's own 70B and 1.4T tokens are near it."""
    n, d = law("replication").optimum(5.76e23)
    assert 15 < d / n < 30
    n, d = law("chinchilla").optimum(5.76e23)
    assert d / n > 60
    assert n == pytest.approx(40e9, rel=0.25)  # Hoffmann et al., table A3's approach 3: 40B for this budget


def test_exponents_of_the_best_size_are_the_published_ones():
    for name, exponent in (("chinchilla", 0.45), ("replication", 0.5126), ("kaplan", 0.73)):
        small, large = law(name).optimum(1e20)[0], law(name).optimum(1e24)[0]
        assert math.log10(large / small) / 4 == pytest.approx(exponent, abs=0.003)


def test_one_pf_day_buys_the_model_of_the_first_law():
    assert law("kaplan").optimum(PF_DAY)[0] == pytest.approx(1.3e9)


@given(st.sampled_from(LAWS), st.floats(6, 12), st.floats(8, 13))
def test_more_parameters_and_more_tokens_never_raise_the_loss(found, n, d):
    n, d = 10**n, 10**d
    assert found.loss(2 * n, d) < found.loss(n, d)
    assert found.loss(n, 2 * d) < found.loss(n, d)


def test_the_spread_says_how_far_the_laws_lie_apart():
    outcomes = for_budget(1e21)
    assert [o.law for o in outcomes] == [found.name for found in LAWS]
    found = spread(outcomes)
    n = [o.parameters for o in outcomes]
    assert found["parameters_ratio"] == max(n) / min(n) > 2


def test_the_first_law_counts_without_embeddings():
    found = {o.law: o for o in for_model(2e9, 1e9, 1e11)}
    assert found["kaplan"].parameters == 1e9
    assert found["replication"].parameters == 2e9


@given(st.floats(19, 24))
def test_the_more_it_serves_the_smaller_the_cheapest_model_of_a_loss(exponent):
    chosen = law("replication")
    seldom, often = for_serving(chosen, 10**exponent, 1e6), for_serving(chosen, 10**exponent, 1e13)
    n, d = chosen.optimum(10**exponent)
    assert often.parameters < seldom.parameters == pytest.approx(n, rel=0.05)
    assert chosen.loss(often.parameters, often.tokens) == pytest.approx(chosen.loss(n, d))
    assert often.over_training > 1.05


def synthetic(true, *, noise=0.0, n_points=60):
    generator = np.random.default_rng(1)
    n = 10 ** generator.uniform(7.5, 10.5, n_points)
    d = 10 ** generator.uniform(8.5, 11.5, n_points)
    loss = [true.loss(*pair) for pair in zip(n, d, strict=True)]
    return points(list(zip(n, d, loss * np.exp(noise * generator.standard_normal(n_points)), strict=True)))


@pytest.mark.parametrize("name", ["chinchilla", "replication"])
def test_a_fit_recovers_the_constants_that_made_its_points(name):
    true = law(name)
    found = fit(synthetic(true), resamples=0).law
    for key in ("e", "a", "b", "alpha", "beta"):
        assert getattr(found, key) == pytest.approx(getattr(true, key), rel=0.02), key


def test_with_noise_the_intervals_hold_the_constants():
    true = law("replication")
    found = fit(synthetic(true, noise=0.003, n_points=120), resamples=30)
    for key, (low, high) in found.intervals.items():
        assert low - 0.3 * (high - low) <= getattr(true, key) <= high + 0.3 * (high - low), key
    assert 0.001 < found.rms < 0.006


def without_e(*, noise, seed=0):
    """Twelve small runs under a law whose E is 0, so that the fit's falls to nothing."""
    generator, true = np.random.default_rng(seed), Law("x", 0.0, 60.0, 80.0, 0.12, 0.15, "")
    n, d = 10 ** generator.uniform(5, 7, 12), 10 ** generator.uniform(6, 8, 12)
    loss = [true.loss(*pair) for pair in zip(n, d, strict=True)] * np.exp(noise * generator.standard_normal(12))
    return points(list(zip(n, d, loss, strict=True)))


def test_an_e_of_nothing_is_said_to_be_undetermined():
    found = fit(without_e(noise=0.0), resamples=4)
    assert found.law.e == 0.0
    assert "e" in found.undetermined
    assert found.law.alpha == pytest.approx(0.12, rel=1e-3)


def test_resamples_find_back_from_an_e_of_nothing():
    """The interval of an E that fell to nothing has a width; and a fit is the same each time."""
    found = fit(without_e(noise=0.01, seed=4), resamples=40)
    assert found.law.e == found.intervals["e"][0] == 0.0
    assert found.intervals["e"][1] > 1.0
    assert {"e", "a"} <= set(found.undetermined)
    assert fit(without_e(noise=0.01, seed=4), resamples=40) == found


def test_points_that_determine_a_law_say_so():
    assert fit(synthetic(law("replication"), noise=0.003), resamples=10).undetermined == ()


def test_one_wild_point_does_not_move_the_fit():
    true, clean = law("replication"), synthetic(law("replication"))
    clean.loss[7] *= 1.5
    assert fit(clean, resamples=0).law.alpha == pytest.approx(true.alpha, rel=0.05)


def test_points_that_cannot_determine_a_law_are_refused():
    with pytest.raises(
        DataError, match=r"at least 5 runs, of 3 model sizes and 3 numbers of tokens\. Here: 2, of 1 and 2"
    ):
        fit(points([(1e8, 1e9, 3.0), (1e8, 2e9, 2.9)]))
    with pytest.raises(DataError, match="positive"):
        fit(points([(1e8, 1e9, -3.0)] * 6))


@pytest.mark.parametrize("n_exponent", [0.2, 0.0])
def test_points_whose_loss_does_not_fall_with_size_are_refused(n_exponent):
    """Larger is worse, or no better: the form has no place for it, and its exponent would be a number without sense."""
    rows = [(n, d, 1.5 + 0.01 * n**n_exponent + 400 / d**0.3) for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11)]
    with pytest.raises(DataError, match=r"the loss does not fall with more parameters \(exponent"):
        fit(points(rows), resamples=2)


@pytest.mark.parametrize("alpha", [0.0, 0.34, 2.9])
def test_a_term_that_vanished_is_refused_whatever_its_exponent(alpha):
    """A of nothing fits a loss that does not depend on N as well as an exponent of nothing: chance decides which."""
    found = np.array([alpha, 0.3, np.log(1.5), -30.0, np.log(400.0)])
    rows = [(n, d, 1.5 + 400 / d**0.3) for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11)]
    with pytest.raises(DataError, match="does not fall with more parameters"):
        _check_falls(found, points(rows))


def test_a_law_that_does_not_exist_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'chinchila' does not exist\. Did you mean chinchilla\?"):
        law("chinchila")


def test_tokens_that_grow_in_step_with_parameters_tell_the_two_apart_no_longer():
    rows = [(n := 1e6 * 2.0**i, 20 * n, 1.7 + 400 / n**0.34 + 410 / (20 * n) ** 0.28) for i in range(8)]
    with pytest.raises(
        DataError, match=r"tokens grow in step with parameters, so that what either does .* Add runs of"
    ):
        fit(points(rows))
    fit(points([*rows, (1e6, 1e9, 1.7 + 400 / 1e6**0.34 + 410 / 1e9**0.28)]), resamples=0)


def test_a_model_knows_how_many_times_its_best_tokens_it_sees():
    best = for_model(1e9, 9e8, None)
    assert [o.over_training for o in best] == [1.0] * len(best)
    for few, one in zip(best, for_model(1e9, 9e8, 1e12), strict=True):
        assert one.over_training == pytest.approx(1e12 / few.tokens)
