"""What is planned before the first step is what the largest step takes, whatever the task and whatever learns."""

import io
import json
import re

import pytest
from rich.console import Console

import onehop
from onehop.config.tune import TuneConfig
from onehop.machine import kept
from onehop.training.forecast import forecast, plain
from onehop.training.trainer import Trainer
from tests.training import test_tasks as tasks
from tests.training.small_runs import recipe
from tests.training.test_tune import tuned

WIDE = {"d_model": 64, "n_layers": 3}
EXPERTS = {"kind": "moe", "expert": "gated", "d_ff": 24, "n_experts": 4, "n_active": 2}


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setattr(kept, "load", lambda: None)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small model to go on from."""
    folder = tmp_path_factory.mktemp("base")
    onehop.train(recipe(folder, model={**WIDE, "max_len": 96}, context=32, steps=1, sample_tokens=0))
    return folder / "out"


def live_of(recipe, *, steps=4):
    """The forecast, and what was tracked in the first steps, by which the largest kind of step has come."""
    trainer = Trainer(recipe, fresh=True)
    found = forecast(trainer)
    for _ in zip(range(steps), trainer.steps(), strict=False):
        pass
    return trainer, found, trainer.tracked.live


@pytest.mark.parametrize("own", [
    {}, {"data": {"packing": "stream"}}, {"data": {"documents": "joined"}}, {"micro_batch": 2}, {"ema": 0.9},
])  # fmt: skip
@pytest.mark.parametrize("task", ["next", "masked"])
def test_where_all_of_one_stack_learns_the_arithmetic_is_near(tmp_path, task, own):
    """Within 5 %, as in tests/cost/test_memory.py: small tensors are not counted one by one."""
    trainer, planned, live = live_of(tasks.recipe(tmp_path, task, model=WIDE, **own))
    assert plain(trainer)
    assert planned.live == pytest.approx(live, rel=0.05)


def test_so_it_is_for_conversations(tmp_path, base):
    trainer, planned, live = live_of(tuned(tmp_path, base))
    assert plain(trainer)
    assert planned.live == pytest.approx(live, rel=0.05)  # as above


@pytest.mark.parametrize("own", [
    {}, {"micro_batch": 2}, {"optimizer": "muon"}, {"recompute": "block"}, {"precision": "bfloat16"}, {"ema": 0.9},
    {"model": {"ffn": EXPERTS}}, {"model": {"vocab_size": 2000}}, {"model": {"dropout": {"residual": 0.1}}},
])  # fmt: skip
def test_the_step_of_an_encoder_decoder_is_rehearsed(tmp_path, own):
    """Within a thousandth: the code is the step's own, on tensors of the same sizes. The pairs are equally long."""
    model = {**WIDE, **own.get("model", {})}
    trainer, planned, live = live_of(tasks.recipe(tmp_path, "pairs", **{**own, "model": model}))
    assert not plain(trainer)
    assert planned.live == pytest.approx(live, rel=1e-3)
    assert not planned.at_most


@pytest.mark.parametrize("words", [
    ["tune.lora.rank=4"], ["tune.lora.rank=2", "tune.lora.targets=layers.*.attention.w[qv]"],
    ["tune.freeze=embed.*"], ["tune.freeze=layers.0.*,layers.1.*"], ["tune.lora.rank=4", "train.micro_batch=2"],
])  # fmt: skip
@pytest.mark.parametrize("chat", [True, False])
def test_so_is_a_step_in_which_not_all_learns(tmp_path, base, words, chat):
    """As above; and it takes less than one in which all learns."""
    trainer, planned, live = live_of(tuned(tmp_path, base, *words, chat=chat))
    assert not plain(trainer)
    assert planned.live == pytest.approx(live, rel=1e-3)
    assert planned.live < forecast(Trainer(tuned(tmp_path, base, chat=chat), fresh=True)).live


@pytest.mark.parametrize("task", ["pairs", "spans"])
def test_of_rows_that_differ_in_length_the_widest_are_planned_for(tmp_path, task):
    """Each longest side in a row of its own: no batch holds both, and no step takes more than is told."""
    rows = [{"source": "abc" * 5, "target": "a"}, {"source": "a", "target": "cba" * 5}, {"source": "ab", "target": "b"}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows * 40))
    (tmp_path / "text.txt").write_text("\n".join(" ".join(["a fox sees a nut"] * n) for n in (1, 2, 3, 4) * 20))
    own = {"batch_size": 2, "steps": 40, "eval_every": 40}
    trainer, planned, live = live_of(tasks.recipe(tmp_path, task, model=WIDE, **own), steps=40)
    assert planned.at_most
    assert planned.line.startswith("memory: at most ")
    source, target = trainer.lesson.widths
    batches = [trainer.loader.batch(i) for i in range(40)]
    assert max(batch.source.size(1) for batch in batches) == source.most
    assert max(batch.tokens.size(1) for batch in batches) == target.most
    assert 0.8 * planned.live < live <= planned.live  # near it: the widest of one side came, with one less wide


def test_rows_are_planned_for_as_packed_where_some_are(tmp_path):
    """Of the first batches only some hold several documents; a step of those is watched though it is not the second."""
    text = "\n".join(["a fox sees a nut and hides it under the corn of a crow"] * 6 + ["the hen eats."] * 2) + "\n"
    wanted = recipe(tmp_path, text=text * 8, model=WIDE, batch_size=1, steps=12, eval_every=12)
    trainer = Trainer(wanted)
    packed = [trainer.loader.batch(i).packed for i in range(12)]
    assert packed[:2] == [False, False]
    assert any(packed)
    planned = forecast(trainer)
    assert planned.asked.packed
    list(trainer.steps())
    assert trainer.tracked.watched == 2
    assert planned.live == pytest.approx(trainer.tracked.live, rel=0.05)  # as above


def test_a_batch_that_grows_is_planned_for_and_watched_when_it_has_grown(tmp_path):
    own = {"micro_batch": 2, "batch_size": 6, "batch_start": 2, "batch_warmup": 5}
    trainer, planned, live = live_of(recipe(tmp_path, model=WIDE, **own), steps=6)
    assert (planned.asked.micro_batches, trainer.tracked.watched) == (3, 2)
    assert planned.live == pytest.approx(live, rel=0.05)  # as above
    short, planned, live = live_of(recipe(tmp_path, model=WIDE, **{**own, "batch_warmup": 99}))
    assert (planned.asked.micro_batches, short.tracked.watched) == (1, 1)  # it does not grow before its end
    assert planned.live == pytest.approx(live, rel=0.05)


@pytest.mark.parametrize("task", ["next", "masked", "pairs", "spans"])
def test_the_forecast_is_told_first_and_put_beside_what_was_held(tmp_path, task):
    console = Console(file=io.StringIO(), width=300)
    if task == "next":
        wanted = recipe(tmp_path).model_copy(update={"tune": TuneConfig(freeze=("embed.*",))})
    else:
        wanted = tasks.recipe(tmp_path, task)
    onehop.train(wanted, console=console)
    lines = console.file.getvalue().splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.endswith("of tensors planned at the peak of a step")]
    (last,) = [line for line in lines if line.startswith("memory at the peak: ")]
    words = re.match(r"memory: (.*) of tensors", lines[first])[1]
    assert first < lines.index("training")
    assert last.startswith(f"memory at the peak: {words} of tensors planned, ")
    assert " tracked (" in last


def test_a_forecast_changes_nothing(tmp_path):
    """Neither the steps nor the random numbers that parts may draw: the losses are the same to the bit."""
    wanted = tasks.recipe(tmp_path, "pairs", model={"dropout": {"residual": 0.1}})
    losses = [step.loss for step in onehop.steps(wanted)]
    trainer = Trainer(wanted, fresh=True)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    forecast(trainer)
    assert all(before[name].equal(p) and p.grad is None for name, p in trainer.model.named_parameters())
    assert [result.loss for result in trainer.steps()] == losses
