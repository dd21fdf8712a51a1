"""Recipes compared: equal budgets, the same seeds, runs that `train` would have made, and what may not be compared."""

import itertools
import json
import signal
from types import SimpleNamespace

import pytest

import onehop
from onehop.base.errors import ConfigError, DataError
from onehop.cli.main import main
from onehop.config import to_toml
from onehop.config.sweep import Entry
from onehop.cost.planned import Plan
from onehop.training import compare as compare_file
from onehop.training.budget import look_at, steps_for
from onehop.training.compare import compare
from onehop.training.compare_plot import by_budget, short_names
from onehop.training.schedule import parts, parts_before
from tests.training.small_runs import recipe
from tests.training.test_tasks import recipe as pairs_recipe

SMALL = {"steps": 4, "eval_every": 2, "log_every": 2, "sample_tokens": 0, "eval_rows": 2}


@pytest.fixture
def entry(tmp_path):
    def made(name="a", *, model=None, data=None, **train):
        return Entry(name, recipe(tmp_path, model=model, data=data, **{**SMALL, **train}))

    return made


@pytest.fixture(autouse=True)
def no_pictures_of_single_runs(monkeypatch):
    """They take most of the time of so small a run, and are tested elsewhere."""
    for name in ("RunPage.write", "draw_losses"):
        monkeypatch.setattr(f"onehop.training.session.{name}", lambda *a, **k: None)


def steps_of(monkeypatch):
    """The numbers of all steps that are taken from now on."""
    taken, real = [], compare_file.Session._after_step
    monkeypatch.setattr(
        compare_file.Session, "_after_step", lambda session, result: taken.append(result.step) or real(session, result)
    )
    return taken


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row.get("val_loss")) for row in rows]


def test_a_run_of_a_comparison_is_the_run_that_train_makes(tmp_path, entry):
    one = entry("b", lr=3e-3)
    compare([entry(), one], out=tmp_path / "both", seeds=2)
    alone = {"out": str(tmp_path / "alone"), "train": one.recipe.train.model_copy(update={"seed": 1})}
    onehop.train(one.recipe.model_copy(update=alone))
    assert rows_of(tmp_path / "both" / "b-seed1") == rows_of(tmp_path / "alone")


def test_the_table_is_that_of_the_runs(tmp_path, entry):
    found = compare([entry(), entry("b", lr=1e-5)], out=tmp_path / "both", seeds=2)
    ends = {r.folder: rows_of(tmp_path / "both" / r.folder)[-1][2] for r in found.results}
    apart = [ends[f"b-seed{i}"] - ends[f"a-seed{i}"] for i in (0, 1)]
    first, second = found.lines()
    assert second.difference.mean == pytest.approx(sum(apart) / 2)
    assert second.spread == pytest.approx(abs(ends["b-seed0"] - ends["b-seed1"]) / 2**0.5)
    assert (first.difference, first.verdict) == (None, "baseline")
    assert second.difference.mean > 0  # it hardly moved
    saved = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert saved["table"][1]["verdict"] == second.verdict
    assert "| b | " in (tmp_path / "both" / "comparison.md").read_text()
    assert (tmp_path / "both" / "comparison.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("train", "steps"), [({"batch_size": 2}, 8), ({"batch_size": 2, "micro_batch": 1}, 8)])
def test_equal_tokens_are_more_steps_of_a_smaller_batch(tmp_path, entry, train, steps):
    found = compare([entry(), entry("b", **train)], out=tmp_path / "both", seeds=1)
    assert found.terms.steps == {"a": 4, "b": steps}


def test_equal_flops_are_those_of_the_planner(tmp_path, entry):
    wide = {"d_model": 32, "ffn": {"kind": "gated", "d_ff": 48}}
    found = compare([entry(steps=20), entry("b", model=wide)], out=tmp_path / "both", seeds=1, equal="flops")
    configs = [onehop.train(str(tmp_path / "both" / f"{n}-seed0" / "recipe.toml"), {"train.steps": 0, "out": str(
        tmp_path / n)}).trainer.recipe.model for n in "ab"]  # fmt: skip
    costs = [Plan(config).train_flops_per_token(32) * 32 * 4 for config in configs]
    a, b = (result.flops for result in found.results)
    assert (a, b) == (pytest.approx(costs[0] * 20), pytest.approx(costs[1] * found.terms.steps["b"]))
    assert abs(a - b) <= costs[1] / 2  # as near as whole steps come
    assert found.terms.steps["b"] < 15


def test_equal_time_gives_each_the_steps_of_its_pace(tmp_path, entry, monkeypatch):
    paces = iter([0.2, 0.4])
    monkeypatch.setattr("onehop.training.budget._pace", lambda trainer: next(paces))
    found = compare([entry(steps=6), entry("b")], out=tmp_path / "both", seeds=1, equal="time")
    assert found.terms.steps == {"a": 6, "b": 3}


def test_a_pace_is_seconds_of_a_micro_batch(tmp_path, entry, monkeypatch):
    monkeypatch.setattr("onehop.training.budget.SECONDS", 0.0)
    clock = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))  # a step takes one tick, however many micro-batches
    found = compare([entry(), entry("b", micro_batch=2)], out=tmp_path / "both", seeds=1, equal="time")
    assert found.terms.steps == {"a": 4, "b": 4}


@pytest.mark.parametrize("train", [{}, {"batch_start": 1, "batch_warmup": 5, "micro_batch": 1}])
def test_steps_for_a_number_of_micro_batches_come_nearest(entry, train):
    cfg = entry(**train).recipe.train
    assert [parts_before(n, cfg) for n in range(9)] == [sum(parts(i, cfg) for i in range(n)) for n in range(9)]
    for wanted in (0, 0.4, 1, 2.6, 7, 30.2):
        best = min(range(100), key=lambda n: abs(parts_before(n, cfg) - wanted))
        assert parts_before(steps_for(wanted, cfg), cfg) == parts_before(best, cfg)


@pytest.mark.parametrize("seeds", [10_001, 10**22])
def test_more_seeds_than_a_list_of_them_should_hold_are_refused(tmp_path, entry, seeds):
    with pytest.raises(ConfigError, match=rf"^--seeds {seeds} is more than 10000 runs of each recipe\. Use fewer"):
        compare([entry(), entry("b")], out=tmp_path / "both", seeds=seeds)
    assert not (tmp_path / "both").exists()


def test_finished_runs_are_not_run_again_and_more_seeds_may_be_asked_for(tmp_path, entry, monkeypatch):
    both = [entry(), entry("b", lr=3e-3)]
    before = compare(both, out=tmp_path / "both", seeds=1).results
    began = []
    real = compare_file.Trainer
    monkeypatch.setattr(compare_file, "Trainer", lambda recipe, **how: began.append(recipe.out) or real(recipe, **how))
    found = compare(both, out=tmp_path / "both", seeds=2, resume=True)
    assert [out.rsplit("/", 1)[1] for out in began] == ["a-seed1", "b-seed1"]
    assert found.results[:2] == before


def test_what_is_stopped_goes_on_to_the_same_numbers(tmp_path, entry, monkeypatch):
    both = [entry(), entry("b", lr=3e-3)]
    whole = compare(both, out=tmp_path / "whole", seeds=1)
    real = compare_file.Session._after_step

    def stopped(session, result):
        real(session, result)
        if session.trainer.out.name == "b-seed0" and result.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(compare_file.Session, "_after_step", stopped)
    found = compare(both, out=tmp_path / "cut", seeds=1)
    assert (found.stopped_by, len(found.results)) == (signal.SIGINT, 1)
    monkeypatch.setattr(compare_file.Session, "_after_step", real)
    began = steps_of(monkeypatch)
    again = compare(both, out=tmp_path / "cut", seeds=1, resume=True)
    assert [r.score for r in again.results] == [r.score for r in whole.results]
    assert began == [4]  # the three before it are not taken again


def test_a_run_that_diverges_is_noted_and_the_others_go_on(tmp_path, entry):
    wild = entry("wild", lr=1e30, max_skipped=2, steps=8)
    found = compare([entry(steps=8), wild], out=tmp_path / "both", seeds=1)
    assert [r.score is None for r in found.results] == [False, True]
    assert found.lines()[1].verdict == "diverged (1 of 1)"
    assert "has diverged" in found.results[1].diverged


def test_a_run_that_diverges_while_its_pace_is_taken_is_noted_too(tmp_path, entry, monkeypatch):
    ticks = SimpleNamespace(perf_counter=itertools.count().__next__)  # by the clock all steps take the same
    monkeypatch.setattr("onehop.training.trainer.time", ticks)
    wild = entry("wild", lr=1e36, warmup=0, max_skipped=9, steps=12)
    found = compare([entry(steps=12), wild], out=tmp_path / "both", seeds=1, equal="time")
    assert [line.verdict for line in found.lines()][1] == "diverged (1 of 1)"


@pytest.mark.parametrize(("compiles", "seen"), [("auto", False), ("yes", True)])
def test_the_pace_is_that_of_the_run_and_not_of_a_longer_one_that_would_be_compiled(
    tmp_path, entry, monkeypatch, compiles, seen
):
    found = []
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: None)
    monkeypatch.setattr("onehop.training.budget._pace", lambda trainer: found.append(trainer.compiled) or 1.0)
    facts = look_at(entry(compile=compiles).recipe, tmp_path / "data", timed=True, notify=lambda text: None)
    assert (found, facts.seconds) == ([seen], 1.0)


def test_names_with_dollars_are_drawn_as_they_are(tmp_path, entry):
    found = compare([entry("a$_$"), entry("b$^{$")], out=tmp_path / "both", seeds=1)
    assert len(found.results) == 2
    assert (tmp_path / "both" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_other_tokenizers_are_compared_by_bits_per_byte_of_the_whole_text(tmp_path, entry):
    letters = entry("b", data={"tokenizer": "characters", "vocab_size": 1024})
    found = compare([entry(), letters], out=tmp_path / "both", seeds=1)
    assert found.terms.unit == "bits per byte"
    for result in found.results:
        run = onehop.train(str(tmp_path / "both" / result.folder / "recipe.toml"), {"train.steps": 0, "out": str(
            tmp_path / result.name)}).trainer  # fmt: skip
        held = run.data.validation
        nats = result.val_loss * held.n_targets
        assert result.score == pytest.approx(nats / 0.6931471805599453 / held.n_bytes)
        assert run.recipe.train.eval_rows >= held.n_targets  # all of it


def test_other_rows_of_the_same_tokens_are_compared_on_the_whole_text(tmp_path, entry):
    found = compare([entry(), entry("b", context=16)], out=tmp_path / "both", seeds=1)
    assert (found.terms.unit, found.terms.whole) == ("nats per token", True)


def test_other_tasks_are_compared_on_the_same_rows_only(tmp_path):
    both = [Entry(name, pairs_recipe(tmp_path, "pairs", steps=2, lr=lr)) for name, lr in (("a", 1e-2), ("b", 1e-3))]
    found = compare(both, out=tmp_path / "both", seeds=1)
    assert all(result.score is not None and result.flops is None for result in found.results)
    with pytest.raises(ConfigError, match=r"a has no count of FLOPs"):
        compare(both, out=tmp_path / "flops", equal="flops")
    with pytest.raises(ConfigError, match=r"of tasks other than next, other rows"):
        fewer = Entry("b", pairs_recipe(tmp_path, "pairs", steps=2, eval_rows=4))
        compare([both[0], fewer], out=tmp_path / "rows")


def test_other_validation_texts_are_refused_and_nothing_is_left(tmp_path, entry):
    with pytest.raises(ConfigError, match=r"validation texts of a and b differ"):
        compare([entry(), entry("b", data={"validation": 0.3})], out=tmp_path / "both")
    with pytest.raises(ConfigError, match=r"validation texts of a and b differ"):
        letters = {"tokenizer": "characters", "vocab_size": 1024, "seed": 5}
        compare([entry(), entry("b", data=letters)], out=tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_a_budget_below_one_step_is_refused(tmp_path, entry):
    with pytest.raises(ConfigError, match=r"a step of b costs more than the whole run"):
        compare([entry(steps=1, batch_size=1), entry("b", batch_size=32)], out=tmp_path / "both")


def test_another_comparison_in_the_folder_is_named(tmp_path, entry):
    out = tmp_path / "both"
    with pytest.raises(ConfigError, match="no comparison to resume"):
        compare([entry()], out=out, seeds=1, resume=True)
    compare([entry()], out=out, seeds=1)
    with pytest.raises(ConfigError, match=r"holds a comparison already. Go on with --resume"):
        compare([entry()], out=out, seeds=1)
    with pytest.raises(ConfigError, match=r"of a, train.lr was 0.01 and is 0.002"):
        compare([entry(lr=2e-3)], out=out, seeds=1, resume=True)
    with pytest.raises(ConfigError, match=r"it has --equal tokens"):
        compare([entry()], out=out, seeds=1, resume=True, equal="flops")
    with pytest.raises(ConfigError, match=r"it is of a\. "):
        compare([entry("b")], out=out, seeds=1, resume=True)
    (out / "comparison.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        compare([entry()], out=out, seeds=1, resume=True)


def test_names_are_short_where_keys_say_nothing_new():
    names = [f"model.d_model={d},model.ffn.d_ff={2 * d},train.lr={lr},a.lr=1" for d in (16, 32) for lr in (1, 2)]
    assert short_names(names) == ["d_model=16 lr=1", "d_model=16 lr=2", "d_model=32 lr=1", "d_model=32 lr=2"]
    assert short_names(["a.lr=1,b.lr=1", "a.lr=2,b.lr=1", "a.lr=1,b.lr=2"]) == [
        "a.lr=1 b.lr=1", "a.lr=2 b.lr=1", "a.lr=1 b.lr=2",
    ]  # fmt: skip
    assert short_names(["data.files=a,b", "data.files=c"]) == ["files=a,b", "files=c"]
    for whole in (["a", "b=1"], ["train.lr=1"], ["a.lr=1", "a.lr=1,b=2"]):
        assert short_names(whole) == whole


def test_sizes_at_each_budget_are_put_side_by_side(tmp_path, entry):
    wide = {"d_model": 8, "ffn": {"kind": "gated", "d_ff": 12}}
    entries = []
    for steps in (2, 4):
        for name, model in (("model.d_model=16", {}), ("model.d_model=8", wide)):
            made = entry(f"{name},train.steps={steps}", model=model, steps=steps)
            entries.append(Entry(made.name, made.recipe, share=str(steps)))
    found = compare(entries, out=tmp_path / "both", seeds=1, equal="flops").lines()
    curves = by_budget(found)
    assert [[line.name for line in lines] for lines in curves] == [
        [f"model.d_model={d},train.steps={steps}" for d in (8, 16)] for steps in (2, 4)
    ]
    assert by_budget(found[:2]) == by_budget([found[0], found[2]]) == []
    assert (tmp_path / "both" / "comparison.png").read_bytes()[:4] == b"\x89PNG"


def test_a_scaling_law_is_fitted_from_what_a_sweep_leaves(tmp_path, entry, capsys):
    """5 runs of 3 sizes and 3 budgets; the law of so small runs says nothing, that it is fitted does."""
    entries = []
    for i, (d, steps) in enumerate([(16, 2), (16, 5), (32, 2), (32, 8), (64, 5)]):
        entries.append(entry(f"r{i}", model={"d_model": d}, steps=steps))
        entries[-1] = Entry(f"r{i}", entries[-1].recipe, share=str(i))
    compare(entries, out=tmp_path / "law", seeds=1)
    files = [str(file) for file in sorted((tmp_path / "law").glob("*/metrics.jsonl"))]
    capsys.readouterr()
    assert main(["plan", "--json", "--fit-law", *files]) == 0
    assert json.loads(capsys.readouterr().out)["n_points"] == 5


def words(tmp_path, name, **train):
    file = tmp_path / f"{name}.toml"
    file.write_text(to_toml(recipe(tmp_path, **{**SMALL, **train})))
    return str(file)


def test_the_command_line_compares_files_and_values(tmp_path, capsys):
    a, b = words(tmp_path, "a"), words(tmp_path, "b", lr=1e-3)
    out = str(tmp_path / "both")
    assert main(["train", a, b, "train.steps=2", f"out={out}", "--seeds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in found["table"]] == ["a", "b"]
    assert found["terms"]["steps"] == {"a": 2, "b": 2}
    assert main(["train", a, "--sweep", "train.lr=1e-3,1e-2", "train.steps=2", f"out={tmp_path / 'lr'}"]) == 0
    said = capsys.readouterr().out
    assert "train.lr=1e-3-seed0" in said
    assert "undecided" in said


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--equal", "flops"], "name a second recipe, or --sweep a key"),
        (["tiny", "--sweep", "train.lr=1,2"], "--sweep varies one recipe: leave out tiny"),
        (["tiny", "--fresh"], "--fresh is for a single run"),
        (["tiny", "--explain"], "--explain is for a single run"),
        (["tiny", "--equal", "steps"], "Use tokens, flops, time"),
        (["tiny", "--seeds", "0"], "needs at least 1"),
        (["nothing.toml"], "nothing.toml"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path, monkeypatch, capsys, more, text):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny", *more]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
