"""How the parts of a measured machine are brought to what whole models take."""

import pytest

from onehop.base.errors import OnehopError
from onehop.cli import measure_resident
from onehop.cli.measure import LEAST, fitted
from onehop.cli.measure_resident import line, peak_of, resident
from onehop.cost.roofline import Phase
from onehop.machine.here import peak_resident


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


# Resident memory


def test_two_models_tell_libraries_and_tensors_apart():
    found = line((10.0, 10.0, 415), (810.0, 810.0, 1_375))
    assert (found.share, found.base) == pytest.approx((0.2, 403.0))
    assert found.of(100.0, 100.0) == pytest.approx(523.0)


def test_what_is_prepared_tells_what_its_originals_leave():
    found = line((10.0, 8.0, 310 + 4), (1_000.0, 908.0, 1_300 + 454))
    assert (found.share, found.base) == pytest.approx((0.5, 300.0))
    assert found.of(500.0, 0.0) == pytest.approx(800.0)


def test_no_tensor_is_taken_to_hold_less_than_its_bytes():
    assert line((10.0, 10.0, 400), (810.0, 810.0, 900)).share < 1e-5


def test_a_command_is_run_in_a_process_of_its_own():
    mine = peak_resident()
    assert mine is not None
    assert 5e6 < peak_of("--help") < mine  # torch, which is loaded here, is not loaded there


def test_a_command_that_fails_says_why():
    with pytest.raises(OnehopError, match=r"not measured: onehop train failed \(.*no-such-recipe"):
        peak_of("train", "no-such-recipe")


def test_what_lies_in_the_working_folder_is_not_taken_for_a_library(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert peak_of("--help") > 5e6


def test_where_resident_memory_cannot_be_measured_the_rest_is(monkeypatch):
    def fails(*words):
        raise OnehopError("resident memory was not measured: onehop train failed (no room)")

    told = []
    monkeypatch.setattr(measure_resident, "peak_of", fails)
    assert resident(told.append) == {}
    assert told == ["resident memory", "resident memory was not measured: onehop train failed (no room)"]


@pytest.mark.slow
def test_runs_and_answers_hold_their_libraries_and_their_tensors():
    found = resident(lambda text: None)
    assert set(found) == {"training", "inference"}
    assert found["training"].base > found["inference"].base > 1e8  # a run also draws its curves
    assert all(one.share < 2 for one in found.values())
