"""`onehop plan --budget` and `--fit-law`: budgets become FLOPs, runs become the points of a law."""

import json
import re

import pytest

import onehop
from onehop.base.errors import ConfigError, DataError
from onehop.cli.plan_budget import budget_flops, points_of
from onehop.cost import plan
from onehop.cost.devices import device
from onehop.cost.scaling import Law, law
from tests.cli.test_plan import found, refusal, said


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home of one's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


# Budgets


def test_budgets_in_hours_and_money_become_flops():
    h100 = device("H100")
    hours, words = budget_flops("500 gpu-hours", h100, mfu=0.4, price=None, dtype="bfloat16")
    assert hours == pytest.approx(500 * 3600 * 0.4 * 989.4e12)
    assert "40% of its peak" in words
    assert budget_flops("$1000", h100, mfu=0.4, price=2.0, dtype="bfloat16")[0] == pytest.approx(hours)
    assert budget_flops("1,000 usd", h100, mfu=0.4, price=2.0, dtype="bfloat16")[0] == pytest.approx(hours)


def test_the_type_is_named_in_which_the_device_multiplies(capsys):
    """500 h at 40 % of 1.43e12 FLOP/s in float32: this processor has no bfloat16."""
    flops, words = budget_flops("500h", device("Core i9-14900K"), dtype="bfloat16")
    assert flops == pytest.approx(500 * 3600 * 0.4 * 1.43e12)
    assert words == "500 hours of Core i9-14900K at 40% of its peak in float32"
    rows = [line for line in said(capsys).splitlines() if "TFLOP/s" in line]
    assert [line.split()[0] for line in rows if line.endswith("in float32")] == ["Core"]


@pytest.mark.parametrize(
    ("text", "flops"),
    [("1.5e21flops", 1.5e21), ("1,000,000,000,000 flops", 1e12), ("1_000_000_000.5e3 flop", 1.0000000005e12)],
)
def test_commas_stand_between_thousands(text, flops):
    assert budget_flops(text, None, dtype="bfloat16")[0] == pytest.approx(flops)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,5e21flops", "commas stand between thousands"),
        ("1_5e21flops", "commas stand between thousands"),
        ("1 5e21flops", "commas stand between thousands"),
        ("10,00usd", "commas stand between thousands"),
        ("€500hours", "has two units, € and hours."),
        ("$1e21flops", "has two units, $ and flops."),
        ("$500eur", "has two units, $ and eur."),
        ("$", "write a number and flops"),
    ],
)
def test_a_budget_that_can_be_misread_is_refused(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        budget_flops(text, device("H100"), price=2.0, dtype="bfloat16")


@pytest.mark.parametrize("text", ["$1000", "$ 1000", "$1,000 usd", "1000$", "1 000 dollars", "1_000usd"])
def test_money_is_written_in_many_ways(text):
    assert budget_flops(text, device("H100"), mfu=0.4, price=2.0, dtype="bfloat16")[0] == pytest.approx(
        500 * 3600 * 0.4 * 989.4e12
    )


def test_a_served_model_is_smaller_and_trained_for_longer(capsys):
    rows = found(capsys, "--budget", "1e21flops", "--serve", "1e13")
    assert rows["served"]["parameters"] < rows["outcomes"][2]["parameters"]


def test_how_much_longer_is_told_in_few_digits(capsys):
    assert found(capsys, "--budget", "1e13flops", "--serve", "9e15")["served"]["over_training"] > 1000
    text = said(capsys, "--budget", "1e13flops", "--serve", "9e15")
    assert re.search(r", [0-9.]{1,4}[kM] times the tokens of its own optimum", text)


def test_a_price_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"^--price 0: a number above 0, what an hour of the device costs"):
        budget_flops("10usd", device("H100"), mfu=0.4, price=0.0, dtype="bfloat16")


# A law of one's own


def test_a_law_is_fitted_to_points_in_a_file(capsys, tmp_path):
    true = law("chinchilla")
    rows = [
        {"n": n, "d": d, "loss": true.loss(n, d)} for n in (1e8, 3e8, 1e9, 3e9, 1e10) for d in (1e9, 3e9, 1e10, 1e11)
    ]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fitted = found(capsys, "--fit-law", "points.jsonl")
    assert fitted["law"]["alpha"] == pytest.approx(0.34, rel=0.02)
    assert fitted["n_points"] == 20


def test_constants_that_points_do_not_determine_are_named(capsys, tmp_path):
    true = Law("x", 0.0, 60.0, 80.0, 0.12, 0.15, "")
    rows = [{"n": n, "d": d, "loss": true.loss(n, d)} for n in (1e5, 1e6, 1e7) for d in (1e6, 1e7, 1e8)]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fitted = found(capsys, "--fit-law", "points.jsonl")
    assert "e" in fitted["undetermined"]
    names = ", ".join(fitted["undetermined"])
    assert f"the points do not determine {names}: add runs" in said(capsys, "--fit-law", "points.jsonl")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"n": "x", "d": 1e9, "loss": 3}', "holds a line with n='x'"),
        ('{"n": true, "d": 1e9, "loss": 3}', "holds a line with n=True"),
        ('{"n": 1e9, "d": null, "loss": 3}', "holds a line with d=None"),
        ('{"n": 1e9, "d": 1e9}', "holds a line with loss=None"),
        ('{"n": 1e9, "d": 1e9, "loss": NaN}', "holds a line with loss=nan"),
        ('{"n": 1e9, "d": -1, "loss": 3}', "holds a line with d=-1"),
        ("{" + '"n": 1' + "0" * 400 + "}", "holds a line with n=1000"),
        ("[" * 100_000, "is not JSON by lines"),
        (b"\xff\xfe", "is not text in UTF-8"),
        ("[1, 2]", "holds a line that is no object"),
    ],
)
def test_a_line_that_is_no_point_is_refused_by_its_file(capsys, tmp_path, line, text):
    good = b'{"n": 1e9, "d": 1e9, "loss": 3}\n'
    (tmp_path / "points.jsonl").write_bytes(good + (line if isinstance(line, bytes) else line.encode()))
    found = refusal(capsys, "--fit-law", "points.jsonl")
    assert "points.jsonl" in found
    assert text in found
    assert "is a folder" in refusal(capsys, "--fit-law", str(tmp_path))


def test_runs_are_points_by_their_recipe_and_their_last_evaluation(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text(onehop.config.to_toml(onehop.config.read("tiny", ["model.vocab_size=300"]).recipe))
    lines = [
        {"step": 1, "tokens": 10, "val_loss": 5.0},
        {"step": 2, "tokens": 20, "val_loss": 4.0},
        {"step": 3, "tokens": 30},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((n, d, loss),) = points_of([str(run / "metrics.jsonl")])
    config = onehop.config.read("tiny", ["model.vocab_size=300"]).recipe.model
    assert (n, d, loss) == (plan(config).parameters.active, 20, 4.0)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(DataError, match="no line with tokens and val_loss"):
        points_of([str(run / "metrics.jsonl")])
