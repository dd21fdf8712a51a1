"""A finished run says what it was planned to take beside what it took."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

import onehop
from onehop.base.units import human_bytes
from onehop.cost.account import account, wishes
from onehop.cost.devices import Resident, device
from onehop.cost.planned import Asked
from onehop.machine import kept
from onehop.training import tracked
from onehop.training.forecast import forecast
from onehop.training.tracked import size_of
from tests.training.small_runs import recipe


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setattr(kept, "load", lambda: None)


def test_a_run_ends_with_its_account_and_the_plan_was_near(tmp_path):
    """Within a tenth: the numbers of so small a model lie between many small tensors."""
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(recipe(tmp_path), console=console)
    (told,) = [line for line in console.file.getvalue().splitlines() if line.startswith("memory at the peak")]
    (error,) = re.findall(r"planned, .* tracked \(([+-]\d+\.\d)%\), .* resident in all; .* tokens/s$", told)
    assert abs(float(error)) < 10
    assert run.trainer.tracked.live > 0


@pytest.mark.parametrize("packing", ["whole", "stream"])
def test_the_planned_peak_is_told_before_the_first_step_and_again_in_the_account(tmp_path, packing):
    console = Console(file=io.StringIO(), width=300)
    wanted = recipe(tmp_path, data={"packing": packing})
    onehop.train(wanted, console=console)
    lines = console.file.getvalue().splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.endswith("of tensors planned at the peak of a step")]
    assert first < lines.index("training")
    (last,) = [line for line in lines if line.startswith("memory at the peak")]
    size = re.match(r"memory: (\S+ \S+) of", lines[first])[1]
    assert last.startswith(f"memory at the peak: {size} of tensors planned")
    again = Console(file=io.StringIO(), width=300)
    onehop.train(wanted, console=again, resume=True)  # no step is left
    assert "planned at the peak of a step" not in again.file.getvalue()


def test_rows_of_experts_that_are_padded_have_places_of_their_own(tmp_path):
    """A model that counts padding is given them, and the account asks for as much as the step has."""
    ffn = {"kind": "moe", "expert": "gated", "d_ff": 24, "n_experts": 4, "n_active": 1}
    for model, packed in (({"ffn": ffn}, True), ({}, False)):
        text = "\n".join(f"one crow hides the corn {i}." for i in range(100))
        wanted = recipe(tmp_path, model={**model, "max_len": 16}, text=text)
        run = onehop.train(wanted, console=Console(file=io.StringIO()), fresh=True)
        batch = run.trainer.loader.batch(1)
        assert (batch.packed, batch.padded) == (False, True)
        assert size_of(run.trainer.model, [batch])[1] is int(packed)
        assert forecast(run.trainer).asked.packed is packed


def test_a_run_of_one_step_has_nothing_tracked(tmp_path):
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(recipe(tmp_path, steps=1), console=console)
    assert run.trainer.tracked.live is None
    assert "of tensors planned, " in console.file.getvalue()


def test_watching_a_step_changes_nothing(tmp_path, monkeypatch):
    seen = [step.loss for step in onehop.steps(recipe(tmp_path))]
    monkeypatch.setattr(tracked.Tracked, "step", lambda self, take, **told: take())
    assert [step.loss for step in onehop.steps(recipe(tmp_path), fresh=True)] == seen


def test_an_account_names_planned_and_measured_speed():
    found = account(
        3e6, words="3 MB", live=None, resident=None, tokens_per_s=1000.0, expected=1500.0, device=None
    )  # fmt: skip
    assert found == "memory at the peak: 3 MB of tensors planned; 1k tokens/s, 1.5k planned (+50%)"


def test_an_account_names_planned_and_measured_memory_of_the_process():
    live = 2e9
    where = replace(device("H100"), resident={"training": Resident(base=1e9, share=0.5)})
    found = account(
        live, words="2 GB", live=live, resident=1e9 + 3 * live, tokens_per_s=1.0, expected=None, device=where
    )  # fmt: skip
    off = (1e9 + 1.5 * live) / (1e9 + 3 * live) - 1
    held, planned = human_bytes(1e9 + 3 * live), human_bytes(1e9 + 1.5 * live)
    assert found.endswith(f"tracked (+0.0%), {held} resident in all and {planned} planned ({off:+.0%}); 1 tokens/s")


def test_what_a_recipe_asks_is_what_the_planner_is_asked(tmp_path):
    train = recipe(tmp_path, micro_batch=2, optimizer="muon").train
    wish = wishes(train, 32, packed=True)
    asked = Asked(**wish)
    assert (asked.train_rows, asked.micro_batches, asked.optimizer, asked.packed) == (2, 2, "muon", True)
    assert asked.tokens == 6 * 4 * 32


def test_a_measurement_that_cannot_be_read_costs_a_run_its_comparison_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "load", lambda: {"name": "here", "pace": {}})
    console = Console(file=io.StringIO(), width=400)
    onehop.train(recipe(tmp_path, steps=2), console=console)
    (told,) = [line for line in console.file.getvalue().splitlines() if line.startswith("memory at the peak")]
    assert "tokens/s; the measurement of this machine is damaged, or older than this onehop" in told
    assert told.endswith("Repeat onehop plan --measure.")
