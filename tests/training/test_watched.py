"""What a run shows while it learns and afterwards: a line with a sparkline, TensorBoard's events, one page."""

import io
import json
import math
import re
import sys
from html.parser import HTMLParser
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console

import onehop
from onehop.base.errors import Diverged, OnehopError
from onehop.training.events import Events, scalars
from onehop.training.page import Page, Tile
from onehop.training.page_pictures import GRID, INK, pictures, thinned
from onehop.training.report import Display, fitted, sparkline
from onehop.training.run_page import RunPage
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
        r"step 4 of 6  loss \d\.\d{3}  [▁▂▃▄▅▆▇█]{4}  \S+ tokens/s  \S+ [kMG]FLOP/s  lr \S+  \S+ [MG]B  \S+ \S+ left",
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
    assert reader.tags.count("svg") == 9  # loss, rate, gradient, its layers, speed, memory, three of experts
    for said in (
        "train.lr",
        "0.01",
        "validation",
        "torch",
        "--- step 3",
        "threads",
        "tokens_seen",
        "finished: 6 steps",
    ):
        assert said in reader.text, said


def a_page(**changes):
    parts = {"title": "a run", "state": "", "tiles": [], "facts": {}, "pictures": [], "folded": {}}
    return Page(**{**parts, **changes})


@pytest.mark.parametrize(("row", "there"), [({}, False), ({"ema_val_loss": 2.0}, True)])
def test_the_page_draws_the_loss_of_the_average_where_there_is_one(row, there):
    rows = [{"step": step, "loss": 3.0, "val_loss": 2.5, **row} for step in (1, 2)]
    drawn = pictures(rows, best=None)[0].svg
    assert ">validation<" in drawn
    assert (">validation of the average<" in drawn) == there


FULL = [
    {
        "step": step, "loss": None if step == 5 else 3.0 / step, "lr": 0.1, "grad_norm": 0.5, "tokens_per_s": 9.0,
        "mfu": 0.4, "memory": 5e8, "grad_norms": {"layers.0": 0.5, "$<b>": None}, "router_entropy": 1.3,
        "expert_load": [[0.25, 0.75], [0.5, 0.5]], "expert_entropy": [0.9, 1.0],
        **({"skipped": True} if step == 5 else {}), **({"spike": True} if step in (7, 9) else {}),
    }
    for step in range(1, 11)
]  # fmt: skip


def test_the_pictures_of_a_page_are_whole_and_share_no_id():
    drawn = pictures(FULL, best=0.2, clip=1.0, layers=["1", "3"])
    assert len(drawn) == 10
    ids, used = [], set()
    for picture in drawn:
        for element in ET.fromstring(picture.svg).iter():
            ids += [element.get("id")] if element.get("id") else []
            used |= set(
                re.findall(r"#([\w.-]+)", " ".join(v for k, v in element.items() if "href" in k or "clip" in k))
            )
        assert not {INK, GRID} & set(re.findall("#[0-9a-f]{6}", picture.svg))  # all of it in the page's colours
    assert len(ids) == len(set(ids))
    assert used
    assert used <= set(ids)


def test_the_frames_of_all_pictures_stand_below_each_other():
    """What draws the left edge of the axes begins at the same place."""
    edges = set()
    for picture in pictures(FULL, best=None):
        (axis,) = re.findall(r'<g id="[\w-]*matplotlib\.axis_1">.*?<path d="M ([\d.]+) ', picture.svg, re.DOTALL)
        edges.add(axis)
    assert len(edges) == 1


def test_alarms_are_marked_with_their_number():
    loss, _, gradient, *_ = pictures(FULL, best=None)
    for svg in (loss.svg, gradient.svg):
        assert ">step skipped (1)<" in svg
        assert ">loss jumped (2)<" in svg
        assert "expert idle" not in svg


def test_many_points_are_drawn_as_means_between_the_lowest_and_the_highest():
    points = np.array([(1, 4.0), (2, 6.0), (3, 1.0), (4, 9.0), (5, 2.0)])
    x, mean, low, high = thinned(points, 2)
    assert x.tolist() == [1.5, 3.5, 5.0]
    assert mean.tolist() == [5.0, 5.0, 2.0]
    assert (low.tolist(), high.tolist()) == ([4.0, 1.0, 2.0], [6.0, 9.0, 2.0])


def test_a_page_of_a_long_run_stays_small(tmp_path):
    rows = [{**FULL[0], "step": step, "loss": 1 + step % 7} for step in range(1, 20_001)]
    page = a_page(pictures=pictures(rows, best=None))
    page.write(tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 1_500_000


def test_what_a_run_says_cannot_break_its_page(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [{"step": step, "loss": 1.0, "grad_norms": {evil: 1.0}} for step in (1, 2)]
    said = {"title": evil, "state": evil, "tiles": [Tile(evil, evil, evil)], "facts": {evil: evil}}
    more = {"pictures": pictures(rows, best=None), "folded": {evil: evil, "recipe": {evil: evil}}}
    a_page(**said, **more).write(tmp_path / "a.html")
    assert evil not in (tmp_path / "a.html").read_text()


def test_a_page_is_written_at_evaluations_as_far_as_its_time_allows(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(RunPage, "write", lambda page, state: written.append(state))
    onehop.train(recipe(tmp_path))
    assert written == ["finished: 6 steps"]
    monkeypatch.setattr("onehop.training.run_page.FIRST", 0.0)
    onehop.train(recipe(tmp_path), fresh=True)
    assert written[1:] == ["running: step 3 of 6", "finished: 6 steps"]


def test_the_step_that_ends_a_run_has_its_line_and_the_page_says_why(tmp_path):
    with pytest.raises(Diverged):
        onehop.train(recipe(tmp_path, lr=1e30, max_skipped=2, steps=8, eval_every=8, log_every=8))
    text = (tmp_path / "out" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row.get("skipped", False) for row in rows][-2:] == [True, True]
    assert rows[-1].keys() == rows[-2].keys()
    assert rows[-1]["grad_norm"] is None
    assert "NaN" not in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"ended after step {rows[-1]['step']} of 8: the gradients of 2 steps in a row" in page
    assert ">step skipped (2)<" in page


def test_a_run_whose_evaluation_is_no_number_has_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.trainer.validation_loss", lambda *a, **k: math.nan)
    with pytest.raises(Diverged):
        onehop.train(recipe(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]


def test_a_narrow_line_keeps_what_matters_most():
    pieces = [(0, "step 1"), (0, "loss 2"), (2, "▁▂"), (1, "9 tokens/s"), (3, ""), (4, "lr 1")]
    assert fitted(pieces, 99) == "step 1  loss 2  ▁▂  9 tokens/s  lr 1"
    assert fitted(pieces, 30) == "step 1  loss 2  ▁▂  9 tokens/s"
    assert fitted(pieces, 29) == "step 1  loss 2  9 tokens/s"
    assert fitted(pieces, 3) == "step 1  loss 2"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_line_on_a_terminal_shows_the_time_that_is_left_whole(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with Display(console) as display:
        display.phase("training", total=600, done=1)
        pieces = [(0, "step 1 of 600"), (0, "loss 2.345"), *((n, f"{n} things") for n in range(1, 20))]
        display.note(fitted(pieces, display.room), done=300)
    last = console.file.getvalue().rsplit("training", 1)[1]
    assert "loss 2.345" in last
    assert re.search(r"\d:\d\d:\d\d|-:--:--", last)
    assert "…" not in last
