"""The compiled loss: said when it is made, said when it cannot be, and the same numbers."""

import pytest
import torch

from onehop.config.recipe import TrainConfig
from onehop.model import compiler
from onehop.model.recompute import recompute
from onehop.training.compiled import Compiled, pick_loss
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.step import training_step
from tests.small_models import MOE, decoder, small_model
from tests.training.test_step import batch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def settings(**own):
    return TrainConfig(**{"steps": 4, "batch_size": 2, "lr": 1e-3, **own})


def test_auto_compiles_on_a_gpu_only(monkeypatch):
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # which would load the compiler
    for choice, device, compiled in (
        ("auto", CPU, False), ("auto", GPU, True), ("yes", CPU, True), ("no", GPU, False),
    ):  # fmt: skip
        assert isinstance(pick_loss(settings(compile=choice), device, note=print, say=print), Compiled) == compiled
    assert pick_loss(settings(), GPU, one_shape=False, note=print, say=print) is batch_loss


def test_without_a_compiler_it_is_said_and_computed_as_it_is_written(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    said = []
    assert pick_loss(settings(compile="yes"), CPU, note=print, say=said.append) is batch_loss
    assert said == [f"not compiled: {compiler.no_compiler(CPU)}"]
    assert "C++ compiler" in said[0]


def test_what_the_compiler_fails_at_is_said_once_and_computed_as_it_is_written(monkeypatch):
    def fails(*_, **__):
        raise torch._dynamo.exc.BackendCompilerFailed(lambda: None, ValueError("no headers"), None)

    monkeypatch.setattr(torch, "compile", lambda function, **_: fails)
    said = []
    loss = Compiled(lambda x: x + 1, note=lambda line: None, say=said.append)
    assert [loss(1), loss(2)] == [2, 3]
    assert len(said) == 1
    assert said[0].startswith("not compiled: ")
    assert "no headers" in said[0]


def losses(config, way, loss_of):
    """Four steps, each on another batch of the same shape."""
    model, cfg = small_model(config, dtype=torch.float32), settings()
    recompute(model, way)
    optimizer, found = make_optimizer(model, cfg), []
    for i in range(4):
        rows = [batch(16, rows=2, length=8, seed=i)]
        found.append(training_step(model, optimizer, rows, index=i, cfg=cfg, loss_of=loss_of).loss)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "block", "selective"])
def test_compiled_losses_are_those_of_eager_and_one_graph_serves_all_steps(way):
    config = decoder(dropout={"residual": 0.1})
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = losses(config, way, Compiled(batch_loss, note=len, say=len))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    # Sums in another order, float32 (6e-8): some hundred of them lie between a weight and the loss after four steps.
    assert compiled == pytest.approx(losses(config, way, batch_loss), rel=1e-5)


@pytest.mark.slow
def test_experts_compile_too():
    config = decoder(ffn=MOE)
    torch.compiler.reset()
    compiled = losses(config, "none", Compiled(batch_loss, note=len, say=len))
    assert compiled == pytest.approx(losses(config, "none", batch_loss), rel=1e-5)
