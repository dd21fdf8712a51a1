"""A step on tensors without numbers: code that needs the numbers themselves cannot be rehearsed."""

import io

import torch
from rich.console import Console
from torch import nn

import onehop
from onehop.training.rehearsal import rehearsed_peak
from onehop.training.trainer import Trainer
from tests.training.test_tasks import recipe


class InNumpy(nn.Module):
    """The identity, once the numbers have been looked at."""

    def forward(self, x):
        assert x.detach().numpy().size
        return x


def test_a_part_that_looks_at_numbers_leaves_the_plan_out(tmp_path, monkeypatch):
    trainer = Trainer(recipe(tmp_path, "pairs"))
    batch = trainer.loader.batch(0)
    rehearse = {"precision": torch.float32}
    assert rehearsed_peak(trainer.model, trainer.recipe.train, [batch], **rehearse) > 0
    trainer.model.final_norm = InNumpy()
    assert rehearsed_peak(trainer.model, trainer.recipe.train, [batch], **rehearse) is None
    monkeypatch.setattr("onehop.training.forecast.rehearsed_peak", lambda *args, **more: None)
    console = Console(file=io.StringIO(), width=300)
    onehop.train(recipe(tmp_path, "pairs"), fresh=True, console=console)
    assert "planned" not in console.file.getvalue()
    assert "trained 6 steps" in console.file.getvalue()


def test_what_lives_beside_the_step_is_counted(tmp_path):
    trainer = Trainer(recipe(tmp_path, "pairs"))
    batch, more = [trainer.loader.batch(0)], torch.zeros(1000)
    alone, beside = (
        rehearsed_peak(trainer.model, trainer.recipe.train, batch, precision=torch.float32, beside=tensors)
        for tensors in ([], [more])
    )
    assert beside - alone == 4000
