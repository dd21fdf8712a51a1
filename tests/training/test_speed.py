"""FLOP/s and their share of the machine's measured peak."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import onehop
from onehop.base.units import human_flops
from onehop.config import ModelConfig
from onehop.config.tune import TuneConfig
from onehop.cost.flops import Pass, forward
from onehop.cost.learning import Learning
from onehop.cost.weights import weights
from onehop.data.pairs import Borders, batch_of
from onehop.training import speed
from onehop.training.speed import Peak, Read, Speed, Work, measure_peak
from tests.small_models import encoder_decoder
from tests.training import test_tasks as tasks
from tests.training.small_runs import recipe

TINY = {"vocab_size": 10, "d_model": 8, "n_layers": 1, "max_len": 4, "attention": {"n_heads": 2}}
TINY |= {"ffn": {"kind": "plain", "d_ff": 16}}


def test_the_flops_of_a_token_by_hand():
    """Products: 4·8·8 of attention, 2·8·16 of the layer, 8·10 of the head; pairs: 10 of 16 in a row of 4 are seen."""
    products = 2 * (4 * 64 + 2 * 128 + 80)
    pairs = 2 * 2 * 8 * 10 / 4  # q·k and weight·v, 8 wide over all heads, 2.5 pairs per token
    work = Work.of(onehop.build(ModelConfig(**TINY)), context=4)
    assert work.per_target(Read(rows=2, tokens=8, targets=8)) == 3 * (products + pairs)
    assert work.per_target(Read(rows=2, tokens=6, targets=2)) == 9 * (products + pairs)  # padding counts for nothing
    assert work.per_target(Read()) is None
    found = Speed(3.0, Peak(1e6, 512, "float32"))
    assert found.mfu(50.0) == pytest.approx(150 / 1e6)
    assert found.text(50.0) == f"  {human_flops(150)}/s  MFU {found.mfu(50.0):.1%}"


def test_an_encoder_decoder_works_for_sources_and_targets_as_long_as_they_are():
    """As PyTorch counts them on rows without padding, where all pairs are seen but the target's own later ones."""
    model = onehop.build(encoder_decoder(), dtype="float32")
    batches = [batch_of([np.arange(3, 3 + s)] * 2, [np.arange(3, 3 + t)] * 2, Borders(1, 2), most=64)
               for s, t in ((5, 4), (12, 10))]  # fmt: skip
    read = Read().plus(batches)
    assert (read.rows, read.tokens, read.source, read.targets) == (4, 28, 34, 28)
    work = Work.of(model, context=64)
    one = Read().plus(batches[:1])
    step = Pass(4, source=5)
    assert work.per_target(one) * 8 == 2 * 3 * forward(model.config, weights(model.config), step).seen
    each = [work.per_target(Read().plus([batch])) * batch.n_targets for batch in batches]
    assert work.per_target(read) * 28 == pytest.approx(sum(each), rel=0.05)  # of the mean length: pairs are a square


def test_what_is_not_known_is_left_out():
    assert Speed(None, Peak(1e6, 512, "float32")).text(5.0) == ""
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
    per_target = Work.of(run.trainer.model, context=32).per_target(run.trainer.read)
    last = rows[-1]
    assert last["mfu"] == pytest.approx(last["tokens_per_s"] * per_target / 1e9, abs=1e-4)  # to four digits
    assert all(row["mfu"] > 0 for row in rows)
    told = json.loads((run.out / "provenance.json").read_text())
    assert told["peak"] == {"flops_per_s": 1e9, "width": 512, "dtype": "float32"}
    assert told["speed"]["mfu"] == pytest.approx(told["speed"]["tokens_per_s"] * per_target / 1e9)
    assert "memory at the peak" in (run.out / "report.html").read_text()


def test_a_run_without_it_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.session.measure_peak", None)
    run = onehop.train(recipe(tmp_path, measure_peak=False))
    assert "peak" not in run.trainer.provenance()
    assert "mfu" not in run.trainer.provenance()["speed"]


@pytest.mark.parametrize("task", ["masked", "pairs", "spans", "frozen"])
def test_every_task_tells_flops_and_the_share_of_the_peak(tmp_path, monkeypatch, task):
    """Read by the run, batch by batch; what is frozen makes it less than three times the forward pass."""
    monkeypatch.setattr("onehop.training.session.measure_peak", lambda device, dtype: Peak(1e9, 512, "float32"))
    monkeypatch.setattr("onehop.training.report.SILENCE", 0.0)
    if task == "frozen":
        freeze = {"tune": TuneConfig(freeze=("embed.*", "layers.0.*"))}
        wanted = recipe(tmp_path, measure_peak=True).model_copy(update=freeze)
    else:
        wanted = tasks.recipe(tmp_path, task, measure_peak=True)
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(wanted, console=console)
    t = run.trainer
    assert re.search(r"tokens/s  \S+ [kMG]FLOP/s  MFU \d+\.\d%  lr", console.file.getvalue())
    assert t.read == Read().plus(t.loader.batch(i) for i in range(6))
    assert t.read.targets == t.progress.tokens
    told = json.loads((run.out / "provenance.json").read_text())["speed"]
    work = Work.of(t.model, context=t.context)
    assert told["flops_per_s"] == pytest.approx(told["tokens_per_s"] * work.per_target(t.read))
    every = replace(work, learning=Learning(frozenset(w.name for w in work.plan.weights)))
    less = work.per_target(t.read) < every.per_target(t.read)
    assert less is (task == "frozen")


def test_a_peak_that_nothing_is_held_against_is_neither_measured_nor_told(tmp_path, monkeypatch):
    """A part of the user's own that does not tell its FLOPs."""
    monkeypatch.setattr("onehop.training.session.measure_peak", None)
    monkeypatch.setattr(Work, "of", lambda model, context: None)
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(recipe(tmp_path, measure_peak=True), console=console)
    assert "peak: " not in console.file.getvalue().replace("memory at the peak: ", "")
    assert "peak" not in run.trainer.provenance()
    assert run.trainer.provenance()["speed"].keys() == {"tokens_per_s"}
