"""What a run says of itself: broken steps and their rows, jumps of the loss, experts without tokens."""

import json
import math

import numpy as np
import pytest
import torch

import onehop
from onehop.base.errors import OnehopError
from onehop.data.pairs import Borders, batch_of
from onehop.training.alarms import IdleExperts, SpikeAlarm, expert_columns, gradient_norms, note_skipped
from onehop.training.step import StepResult
from onehop.training.trainer import Trainer
from tests.small_models import encoder_decoder, small_model
from tests.training.small_runs import recipe

MOE = {"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "bias", "balance_rate": 0.0}}


def lines(folder, name):
    return [json.loads(line) for line in (folder / "out" / name).read_text().splitlines()]


@pytest.fixture
def break_steps(monkeypatch):
    """Make the loss of some steps NaN."""

    def breaking(*steps):
        from onehop.training import compiled

        real, calls = compiled.batch_loss, [0]

        def broken(*args, **more):
            loss = real(*args, **more)
            calls[0] += 1
            if calls[0] in steps:
                loss.surprise.data.fill_(math.nan)
                loss.surprise.register_hook(lambda gradient: gradient * math.nan)
            return loss

        monkeypatch.setattr(compiled, "batch_loss", broken)

    return breaking


def test_a_broken_step_is_skipped_counted_noted_and_its_rows_are_kept(tmp_path, break_steps):
    whole = Trainer(recipe(tmp_path))
    rows = whole.loader.batch(2)
    break_steps(3)
    run = onehop.train(recipe(tmp_path), fresh=True)
    assert run.trainer.progress.skipped == 1
    assert [row["step"] for row in lines(tmp_path, "metrics.jsonl") if row.get("skipped")] == [3]
    (kept,) = lines(tmp_path, "skipped.jsonl")
    assert kept["step"] == 3
    assert kept["loss"] == "nan"
    assert torch.equal(torch.tensor(kept["tokens"]), rows.tokens)
    assert torch.equal(torch.tensor(kept["targets"]), rows.targets)


def test_of_skipped_pairs_the_sources_are_kept_too(tmp_path):
    batches = [batch_of([np.array([5, 6])], [np.array([7, 2])], Borders(1, 2), most=64) for _ in range(2)]
    note_skipped(tmp_path / "skipped.jsonl", StepResult(1, math.nan, 0.1, math.nan, 4, (), True), batches)
    (kept,) = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert [row[:2] for row in kept["source"]] == [[5, 6]] * 2
    assert [row[:2] for row in kept["tokens"]] == [[1, 7]] * 2
    assert [row[:2] for row in kept["targets"]] == [[7, 2]] * 2


def saved_at_5(asked):
    """A run that is left behind step 5, with a checkpoint."""
    trainer = Trainer(asked)
    for result in trainer.steps():
        if result.step == 5:
            trainer.save()
            break


def test_so_many_broken_steps_in_a_row_end_the_run_also_over_a_resume(tmp_path, break_steps):
    break_steps(2, 4, 5, 6)
    saved_at_5(recipe(tmp_path, steps=9, max_skipped=3))
    again = Trainer(recipe(tmp_path, steps=9, max_skipped=3), resume=True)
    with pytest.raises(
        OnehopError, match=r"of 3 steps in a row, up to step 6, were not finite \(their token ids are in"
    ):
        list(again.steps())
    assert [row["step"] for row in lines(tmp_path, "skipped.jsonl")] == [2, 4, 5, 6]
    Trainer(recipe(tmp_path, steps=9, max_skipped=3), resume=True)
    assert [row["step"] for row in lines(tmp_path, "skipped.jsonl")] == [2, 4, 5]  # the run stands at step 5


def test_a_lowered_limit_of_broken_steps_counts_those_before_the_resume(tmp_path, break_steps):
    break_steps(2, 3, 4, 5, 6)
    saved_at_5(recipe(tmp_path, steps=9, max_skipped=9))
    again = Trainer(recipe(tmp_path, steps=9, max_skipped=3), resume=True)
    with pytest.raises(OnehopError, match=r"of 5 steps in a row, up to step 6, were not finite"):
        list(again.steps())


@pytest.mark.parametrize(("steps", "said"), [(1, "of 1 step, up to step 1,"), (2, "of 2 steps in a row, up to step 2")])
def test_a_run_of_which_no_step_moved_anything_has_not_succeeded(tmp_path, break_steps, steps, said):
    break_steps(1, 2)
    with pytest.raises(OnehopError, match=said):
        list(Trainer(recipe(tmp_path, steps=steps)).steps())


def test_a_run_of_which_one_step_moved_ends_well(tmp_path, break_steps):
    break_steps(1, 3)
    assert [result.skipped for result in Trainer(recipe(tmp_path, steps=3)).steps()] == [True, False, True]


def test_a_spike_rings_once_when_it_begins_and_slow_changes_do_not():
    generator = torch.Generator().manual_seed(0)
    noise = (0.05 * torch.randn(400, generator=generator)).tolist()
    falling = [3 + 4 * math.exp(-i / 50) + noise[i] for i in range(400)]
    alarm = SpikeAlarm(6.0)
    assert not any(alarm.rings(loss) for loss in falling)
    assert [alarm.rings(loss) for loss in (5.0, 5.0, 3.0, 3.0)] == [True, False, False, False]
    assert not any(SpikeAlarm(None).rings(loss) for loss in (1.0, 1.0, 1e9))
    assert not alarm.rings(math.nan)


def test_a_spike_in_a_run_is_told_where_the_recipe_draws_the_line(tmp_path):
    """Steps at a rate of nothing lose what chance makes of them; the line is drawn inside and far outside of that."""
    told = {}
    for height in (0.5, 50.0):
        trainer = Trainer(recipe(tmp_path, steps=40, lr=1e-9, spike=height), fresh=True)
        told[height] = [trainer.alarms.lines[0] for _ in trainer.steps() if trainer.alarms.columns.get("spike")]
    assert told[50.0] == []
    assert "the loss jumped to" in told[0.5][0]


def test_the_running_mean_and_spread_are_those_of_the_numbers_seen():
    """Up to 50 numbers every one weighs the same: mean and variance of the lot, and a spike is measured by them."""
    seen = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alarm = SpikeAlarm(6.0)
    for x in seen.tolist():
        alarm.rings(x)
    assert alarm.mean == pytest.approx(float(seen.mean()))
    assert alarm.variance == pytest.approx(float(seen.var(correction=0)))


def test_an_expert_that_no_token_visits_rings_after_so_many_steps_once():
    alarm = IdleExperts(3)
    even, dead = torch.tensor([4, 4]), torch.tensor([8, 0])
    heard = [alarm.rings([None, load]) for load in (dead, dead, even, dead, dead, dead, dead)]
    assert heard == [[], [], [], [], [], [(1, 1)], []]


def test_a_dead_expert_is_told_and_its_load_stands_in_the_metrics(tmp_path):
    trainer = Trainer(recipe(tmp_path, model=MOE, dead_after=2, steps=3, lr=1e-6))
    with torch.no_grad():
        trainer.model.layers[1].ffn.router.choice_bias[2] = -1e9  # never chosen
    heard = []
    for result in trainer.steps():
        heard.append((trainer.alarms.columns, list(trainer.alarms.lines)))
        more = trainer.alarms.more_columns(result.loads)
        assert more["expert_load"][1][2] == 0.0
    assert heard == [
        ({}, []),
        ({"dead_experts": [[1, 2]]}, ["step 2: no token has come to expert 2 of layer 1 for 2 steps"]),
        ({}, []),
    ]


def test_dead_experts_are_told_layer_by_layer(tmp_path):
    trainer = Trainer(recipe(tmp_path, model=MOE, dead_after=1, steps=1, lr=1e-6))
    with torch.no_grad():
        trainer.model.layers[0].ffn.router.choice_bias[0] = -1e9
        trainer.model.layers[1].ffn.router.choice_bias[1:3] = -1e9
    list(trainer.steps())
    assert trainer.alarms.lines == [
        "step 1: no token has come to expert 0 of layer 0 and experts 1, 2 of layer 1 for 1 step"
    ]


def test_loads_and_their_entropy_by_hand():
    """(6, 2) of 8: shares 0.75 and 0.25, entropy (0.75 ln 4/3 + 0.25 ln 4) / ln 2 = 0.8113."""
    assert expert_columns([None, torch.tensor([6, 2]), torch.tensor([5, 5])]) == {
        "expert_load": [[0.75, 0.25], [0.5, 0.5]],
        "expert_entropy": [0.8113, 1.0],
    }
    assert expert_columns([None]) == {}


def test_the_gradients_of_the_parts_add_up_to_the_whole():
    tokens = torch.arange(6).unsqueeze(0)
    model = small_model(encoder_decoder())
    model(tokens, tokens).square().sum().backward()
    norms = gradient_norms(model)
    assert {"layers.0", "layers.1", "final_norm", "encoder.layers.0", "encoder.layers.1"} < norms.keys()
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert math.sqrt(sum(x * x for x in norms.values())) == pytest.approx(float(total), rel=1e-3)  # four digits each


def test_an_alarm_that_is_lowered_on_resume_rings_for_what_was_idle_before():
    before = IdleExperts(100)
    for _ in range(5):
        before.rings([torch.tensor([3, 0])])
    after = IdleExperts(3)
    after.restore(before.idle, limit=before.limit)
    assert [after.rings([torch.tensor([3, 0])]) for _ in range(2)] == [[(0, 1)], []]
    again = IdleExperts(3)
    again.restore(after.idle, limit=3)
    assert again.rings([torch.tensor([3, 0])]) == []
