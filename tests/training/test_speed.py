"""FLOP/s and their share of the machine's measured peak."""

import io
import json
import re

import pytest
import torch
from rich.console import Console

import onehop
from onehop.base.units import human_flops
from onehop.config import Recipe
from onehop.training import speed
from onehop.training.speed import Peak, Speed, measure_peak
from tests.training.small_runs import recipe

TINY = {"vocab_size": 10, "d_model": 8, "n_layers": 1, "max_len": 4, "attention": {"n_heads": 2}}
TINY |= {"ffn": {"kind": "plain", "d_ff": 16}}


def test_the_flops_of_a_token_by_hand():
    """Products: 4·8·8 of attention, 2·8·16 of the layer, 8·10 of the head; pairs: 10 of 16 in a row of 4 are seen."""
    products = 2 * (4 * 64 + 2 * 128 + 80)
    pairs = 2 * 2 * 8 * 10 / 4  # q·k and weight·v, 8 wide over all heads, 2.5 pairs per token
    asked = Recipe(model=TINY, data={"corpus": "fables"}, train={"steps": 1, "batch_size": 1})
    found = Speed.of(asked, context=4, peak=Peak(1e6, 512, "float32"))
    assert found.per_token == 3 * (products + pairs)
    assert found.mfu(50.0) == pytest.approx(found.per_token * 50 / 1e6)
    assert found.text(50.0) == f"  {human_flops(found.per_token * 50)}/s  MFU {found.mfu(50.0):.1%}"


def test_what_is_not_known_is_left_out():
    assert Speed(None, Peak(1e6, 512, "float32")).text(5.0) == ""
    frozen = Recipe(
        model=TINY, data={"corpus": "fables"}, train={"steps": 1, "batch_size": 1}, tune={"freeze": ["embed.*"]}
    )
    assert Speed.of(frozen, context=4, peak=None).per_token is None  # three times the forward pass would be too many
    assert Speed(2.0, None).numbers(5.0) == {"tokens_per_s": 5.0, "flops_per_s": 10.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_peak_is_that_of_the_fastest_product_in_the_precision_of_the_run(monkeypatch, dtype):
    """By a stopwatch that says how long each product took: the second width is the fastest, the last is left out."""
    took = {512: 1e-3, 1024: 6e-3, 2048: 1e-9}
    monkeypatch.setattr(speed.Bench, "seconds", lambda self, call: took[len(call.args[0])])
    found = measure_peak(torch.device("cpu"), dtype)
    assert found == Peak(2 * 1024**3 / 6e-3, 1024, str(dtype).removeprefix("torch."))
    assert measure_peak(torch.device("mps"), dtype) is None


def test_a_product_runs_on_this_machine():
    assert measure_peak(torch.device("cpu"), torch.float32).flops_per_s > 1e6


def test_a_run_tells_the_share_of_the_measured_peak_in_its_line_its_metrics_and_its_report(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.session.measure_peak", lambda device, dtype: Peak(1e9, 512, "float32"))
    monkeypatch.setattr("onehop.training.report.SILENCE", 0.0)
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(recipe(tmp_path, measure_peak=True), console=console)
    said = console.file.getvalue()
    assert "peak: 1 GFLOP/s, measured on two matrices of 512 x 512 in float32" in said
    assert re.search(r"tokens/s  \S+ [kMG]FLOP/s  MFU \d+\.\d%  lr", said)
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    per_token = Speed.of(run.trainer.recipe, context=32, peak=None).per_token
    for row in rows:
        assert row["mfu"] == pytest.approx(row["tokens_per_s"] * per_token / 1e9, abs=1e-4)  # to four digits
    told = json.loads((run.out / "provenance.json").read_text())
    assert told["peak"] == {"flops_per_s": 1e9, "width": 512, "dtype": "float32"}
    assert told["speed"]["mfu"] == pytest.approx(told["speed"]["tokens_per_s"] * per_token / 1e9)
    assert "memory at the peak" in (run.out / "report.html").read_text()


def test_a_run_without_it_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.session.measure_peak", None)
    run = onehop.train(recipe(tmp_path, measure_peak=False))
    assert "peak" not in run.trainer.provenance()
    assert "mfu" not in run.trainer.provenance()["speed"]
