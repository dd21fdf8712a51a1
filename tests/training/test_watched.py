"""What a run shows while it learns and afterwards: a line with a sparkline, TensorBoard's events, one page."""

import io
import json
import math
import re
import sys
from html.parser import HTMLParser
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

import onehop
from onehop.base.errors import OnehopError
from onehop.training.events import Events, scalars
from onehop.training.page import write_page
from onehop.training.report import sparkline
from tests.training.small_runs import recipe

MOE = {"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}}


def test_a_sparkline_by_hand():
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([1.0, math.nan, 2.0]) == "▁ █"
    assert sparkline([]) == ""


def test_the_live_line_tells_loss_rate_memory_and_time_left(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.report.SILENCE", 0.0)
    console = Console(file=io.StringIO(), width=200)
    onehop.train(recipe(tmp_path), console=console)
    line = next(line for line in console.file.getvalue().splitlines() if line.startswith("step 4 of 6  loss"))
    assert re.fullmatch(
        r"step 4 of 6  loss \d\.\d{3} [▁▂▃▄▅▆▇█]{4}  \S+ tokens/s  \S+ [kMG]FLOP/s  lr \S+  \S+ [MG]B  \S+ \S+ left",
        line,
    )


def test_tensorboard_that_is_not_installed_is_named_with_its_extra_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OnehopError, match=r"^train\.tensorboard=true needs .*: pip install 'onehop-lm\[train\]'$"):
        onehop.train(recipe(tmp_path, tensorboard=True))
    assert not (tmp_path / "out").exists()


def test_weights_and_biases_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OnehopError, match=r"^train\.wandb=offline needs .*: pip install 'onehop-lm\[wandb\]'$"):
        onehop.train(recipe(tmp_path, wandb="offline"))
    assert not (tmp_path / "out").exists()


def test_weights_and_biases_hears_every_line_under_one_id_also_after_a_resume(tmp_path, monkeypatch):
    """By a stand-in for its package that notes what it is told."""
    begun, told = [], []

    class Stub(ModuleType):
        def init(self, **options):
            begun.append(options)
            log = lambda numbers, step: told.append((step, numbers["loss"]))  # noqa: E731
            return SimpleNamespace(log=log, finish=lambda: told.append("end"))

    stub = Stub("wandb")
    stub.__spec__ = ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", stub)
    onehop.train(recipe(tmp_path, wandb="offline", log_every=1, steps=2))
    onehop.train(recipe(tmp_path, wandb="offline", log_every=1, steps=4), resume=True)
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [x for x in told if x != "end"] == [(row["step"], row["loss"]) for row in rows]
    assert told.count("end") == 2
    assert begun[0]["id"] == begun[1]["id"]
    assert [options["mode"] for options in begun] == ["offline", "offline"]
    assert begun[0]["config"]["train.lr"] == 1e-2


def test_every_number_of_a_line_has_a_path():
    row = {
        "step": 3,
        "loss": 0.5,
        "lr": None,
        "skipped": True,
        "grad_norms": {"embed": 1},
        "expert_load": [[0.25, 0.75]],
    }
    assert dict(scalars(row)) == {
        "loss": 0.5, "skipped": 1.0, "grad_norms/embed": 1.0, "expert_load/0/0": 0.25, "expert_load/0/1": 0.75,
    }  # fmt: skip


def test_tensorboard_reads_what_metrics_jsonl_says_also_after_a_kill(tmp_path):
    """Steps that were written before the kill and again after the resume stand there once."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    onehop.train(recipe(tmp_path, tensorboard=True, log_every=1, steps=3))
    later = Events(tmp_path / "out", step=0)
    for step in (4, 5):
        later.write({"step": step, "loss": 99.0}, wall_time=0.0)
    later.close()
    onehop.train(recipe(tmp_path, tensorboard=True, log_every=1, steps=6), resume=True)
    found = accumulator(str(tmp_path / "out" / "tensorboard"))
    found.Reload()
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [x.step for x in found.Scalars("loss")] == [row["step"] for row in rows]
    assert [x.value for x in found.Scalars("loss")] == pytest.approx([row["loss"] for row in rows], rel=1e-6)  # float32
    assert "grad_norms/layers.0" in found.Tags()["scalars"]


class Reader(HTMLParser):
    """Collects what a browser would fetch, the titles, and the text."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [
            v for k, v in attributes if k in ("src", "href", "xlink:href") and not v.startswith(("#", "data:"))
        ]

    def handle_data(self, data):
        self.text += data


def test_the_page_of_a_run_needs_nothing_else_and_shows_its_parts(tmp_path):
    run = onehop.train(recipe(tmp_path, model=MOE, sample="a fox"))
    reader = Reader()
    reader.feed((run.out / "report.html").read_text())
    assert reader.fetched == []
    assert not {"script", "link", "iframe"} & set(reader.tags)
    assert reader.tags.count("svg") == 7  # loss, rate, speed, gradient, its layers, experts' shares, their entropy
    for said in ("train.lr", "0.01", "validation", "torch", "--- step 3", "threads", "tokens_seen"):
        assert said in reader.text, said


@pytest.mark.parametrize(("row", "there"), [({}, False), ({"ema_val_loss": 2.0}, True)])
def test_the_page_draws_the_loss_of_the_average_where_there_is_one(tmp_path, row, there):
    rows = [{"step": step, "loss": 3.0, "val_loss": 2.5, **row} for step in (1, 2)]
    options = {"facts": {}, "recipe": {}, "machine": {}, "samples": "", "best": None}
    write_page(tmp_path / "a.html", rows, title="a run", **options)
    page = (tmp_path / "a.html").read_text()
    assert "<!-- validation -->" in page  # matplotlib writes a text beside the glyphs that it draws
    assert ("<!-- validation of the average -->" in page) == there


def test_what_a_run_says_cannot_break_its_page(tmp_path):
    evil = "<script>alert(1)</script>"
    options = {"facts": {evil: evil}, "recipe": {"about": evil}, "machine": {}, "samples": evil, "best": None}
    write_page(tmp_path / "a.html", [], title=evil, **options)
    assert evil not in (tmp_path / "a.html").read_text()
