"""Texts that are mixed or streamed, through a whole run: stopped, resumed, reported."""

import io
import json

import pytest
import torch
from rich.console import Console

import onehop
from onehop.base.errors import ConfigError
from onehop.cli.main import main
from onehop.config import to_toml
from onehop.data import live
from onehop.training.trainer import Trainer
from tests.training.small_runs import recipe, sentences


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """A recipe whose text is a mixture, streamed, or both; its windows are small, so that a run sees several."""
    monkeypatch.setattr(live, "WINDOW", 400)
    (tmp_path / "other.txt").write_text(sentences(n=60, seed=1))
    (tmp_path / "text.txt").write_text(sentences())

    def made(*, mixed, stream=False, weight=2.0, **train):
        data = {"stream": stream}
        if mixed:
            names = {"a": ("text.txt", weight), "b": ("other.txt", 1.0)}
            data |= {"files": [], "separator": None}
            data["mixture"] = {
                name: {"files": [str(tmp_path / file)], "separator": "\n", "weight": w}
                for name, (file, w) in names.items()
            }
        return recipe(tmp_path, data=data, context=16, **train)

    return made


@pytest.mark.parametrize(("mixed", "stream"), [(True, False), (False, True), (True, True)])
def test_a_run_that_is_resumed_reads_on_where_it_stopped(run_of, mixed, stream):
    whole = Trainer(run_of(mixed=mixed, stream=stream, steps=12))
    losses = [result.loss for result in whole.steps()]
    first = Trainer(run_of(mixed=mixed, stream=stream, steps=12), fresh=True)
    head = [result.loss for _, result in zip(range(5), first.steps(), strict=False)]
    first.save()
    again = Trainer(run_of(mixed=mixed, stream=stream, steps=12), resume=True)
    assert head + [result.loss for result in again.steps()] == losses
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name])
    assert again.evaluate() == whole.evaluate()


def test_a_run_is_not_resumed_with_other_weights(run_of):
    trainer = Trainer(run_of(mixed=True))
    trainer.save()
    with pytest.raises(ConfigError, match="cannot be resumed: the text has changed"):
        Trainer(run_of(mixed=True, weight=3.0), resume=True)


def test_a_run_reports_its_text_once_in_its_result_and_for_machines(run_of, tmp_path, capsys):
    (tmp_path / "r.toml").write_text(to_toml(run_of(mixed=True, steps=2, eval_every=2)))
    assert main(["train", str(tmp_path / "r.toml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["data"]
    assert [(row["name"], round(row["share"], 3), row["documents"]) for row in report["sources"]] == [
        ("a", 0.667, 100), ("b", 0.333, 60),
    ]  # fmt: skip
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["data"] == report
    lines = io.StringIO()
    onehop.train(run_of(mixed=True, steps=2, eval_every=2), fresh=True, console=Console(file=lines, width=200))
    said = lines.getvalue()
    assert said.count("data: 160 documents") == 1
    assert said.count("  a: 66.7% of the tokens by weight, ") == 1
