"""The moving average of the weights: its rule, what it is good for, and that it goes on where it stopped."""

import json

import pytest
import torch

import onehop
from onehop.base.errors import ConfigError
from onehop.training import Trainer
from onehop.training.ema import Average
from tests.training.small_runs import recipe


def test_the_average_by_hand():
    """Weights 1, 2, 4, decay 0.4: shares of the new 1 - 2/11 (n = 1) and 1 - min(0.4, 3/12) (n = 2)."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    average = Average(model, 0.4)
    for n, value, want in ((1, 2.0, 1 + 9 / 11), (2, 4.0, 1 / 4 * (1 + 9 / 11) + 3 / 4 * 4.0)):
        model.weight.data.fill_(value)
        average.update(model, n)
        assert average.tensors()["average/weight"].item() == pytest.approx(want, rel=1e-12)
    model.weight.data.fill_(8.0)
    average.update(model, 1000)  # by then the decay is its own
    assert average.tensors()["average/weight"].item() == pytest.approx(0.4 * (0.25 * 20 / 11 + 3) + 0.6 * 8, rel=1e-12)


def test_inside_the_model_has_the_average_and_afterwards_its_own_weights_even_after_an_error():
    model = torch.nn.Linear(2, 2)
    average, start = Average(model, 0.5), model.weight.detach().clone()
    model.weight.data.add_(1.0)
    now = model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), average.inside(model):
        assert torch.equal(model.weight, start)
        raise ZeroDivisionError
    assert torch.equal(model.weight, now)


def test_it_is_evaluated_and_saved_beside_the_weights_and_resumed_bit_for_bit(tmp_path):
    options = {"ema": 0.9, "steps": 8, "eval_every": 4}
    whole = onehop.train(recipe(tmp_path, **options))
    rows = [json.loads(line) for line in (whole.out / "metrics.jsonl").read_text().splitlines()]
    last = rows[-1]
    assert last["ema_val_loss"] != last["val_loss"] == whole.val_loss
    averaged = onehop.load(whole.out / "ema")
    expected = whole.trainer.average.tensors()
    assert {f"average/{name}" for name, _ in averaged.model.named_parameters()} == expected.keys()
    for name, p in averaged.model.named_parameters():
        assert torch.equal(p, expected[f"average/{name}"])
        assert not torch.equal(p, whole.model.get_parameter(name))

    first = Trainer(recipe(tmp_path, **options), fresh=True)
    for _, _ in zip(range(5), first.steps(), strict=False):
        pass
    first.save()
    again = Trainer(recipe(tmp_path, **options), resume=True)
    list(again.steps())
    for name, value in again.average.tensors().items():
        assert torch.equal(value, expected[name])


def test_a_run_without_an_average_is_not_resumed_with_one(tmp_path):
    first = Trainer(recipe(tmp_path, steps=1))
    list(first.steps())
    first.save()
    with pytest.raises(ConfigError, match=r"train\.ema"):
        Trainer(recipe(tmp_path, steps=2, ema=0.9), resume=True)


def test_after_a_fall_back_to_an_older_checkpoint_no_newer_average_is_shown(tmp_path):
    options = {"ema": 0.9, "steps": 4, "eval_every": 4, "save_every": 2}
    onehop.train(recipe(tmp_path, **options))
    newest = tmp_path / "out" / "checkpoints" / "step-00000004" / "optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    again = Trainer(recipe(tmp_path, **options), resume=True)
    assert again.progress.step == 2
    assert not (tmp_path / "out" / "ema").exists()
    list(again.steps())
    again.save()
    assert json.loads((tmp_path / "out" / "ema" / "provenance.json").read_text())["step"] == 4
    Trainer(recipe(tmp_path, **options), resume=True)
    assert (tmp_path / "out" / "ema").exists()
