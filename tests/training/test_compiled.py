"""The compiled loss: said when it is made, said when it cannot be, and the same numbers."""

import pytest
import torch

import onehop
from onehop.base.errors import ConfigError
from onehop.config.recipe import TrainConfig
from onehop.config.task import PairsConfig
from onehop.cost.planned import Plan
from onehop.model import compiler
from onehop.model.recompute import recompute
from onehop.training.compiled import PAYS, Compiled, pick_loss
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.step import training_step
from onehop.training.trainer import Trainer
from tests.small_models import MOE, decoder, small_model
from tests.training.small_runs import recipe
from tests.training.test_step import batch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def settings(**own):
    return TrainConfig(**{"steps": 4, "batch_size": 2, "lr": 1e-3, **own})


@pytest.fixture
def nothing_compiles(monkeypatch):
    """A machine with a compiler, which is not loaded."""
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def picks(recipe, device=CPU, **options):
    """Whether the loss of this recipe is compiled."""
    return isinstance(pick_loss(recipe, device, note=len, say=len, **options), Compiled)


def of_length(folder, flops, **own):
    """A recipe whose run comes to so many FLOPs, or up to one step less."""
    short = recipe(folder, steps=1, **own)
    short = short.model_copy(update={"model": short.model.with_vocab(280)})
    context = short.train.context or short.model.max_len
    step = 3 * Plan(short.model).flops(new=context).seen * short.train.batch_size
    return short.model_copy(update={"train": short.train.model_copy(update={"steps": int(flops / step)})})


@pytest.mark.usefixtures("nothing_compiles")
def test_auto_compiles_on_a_gpu_and_long_runs_on_a_cpu(tmp_path):
    enough = 2 * PAYS * torch.get_num_threads()
    short, long = of_length(tmp_path, 1e9), of_length(tmp_path, enough)
    assert (picks(short), picks(short, GPU), picks(long), picks(long, GPU)) == (False, True, True, True)
    assert not picks(of_length(tmp_path, enough / 4))
    assert picks(recipe(tmp_path, compile="yes"))
    assert not picks(recipe(tmp_path, compile="no"), GPU)
    assert (picks(short, wanted=True), picks(long, wanted=False)) == (True, False)  # what a checkpoint tells
    assert picks(recipe(tmp_path, compile="yes"), wanted=False)


@pytest.mark.usefixtures("nothing_compiles")
@pytest.mark.parametrize(
    "model",
    [
        {"attention": {"n_heads": 2, "softcap": 30.0}},
        {"attention": {"n_heads": 2, "window": 8}},
        {"attention": {"n_heads": 2, "position": {"kind": "alibi"}}},
        {"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}},
        {"max_len": 1024},
    ],
)
def test_on_a_cpu_auto_compiles_nothing_that_a_graph_would_make_larger_or_slower(tmp_path, model):
    assert not picks(of_length(tmp_path, 2 * PAYS * torch.get_num_threads(), model=model))


@pytest.mark.usefixtures("nothing_compiles")
def test_batches_of_several_shapes_are_compiled_by_yes_only(tmp_path):
    wanted = recipe(tmp_path)
    pairs = wanted.model_copy(update={"task": PairsConfig()})
    assert pairs.task.encoder
    assert not picks(pairs, GPU)


def test_without_a_compiler_it_is_said_and_computed_as_it_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    said = []
    assert pick_loss(recipe(tmp_path, compile="yes"), CPU, note=print, say=said.append) is batch_loss
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
    assert not loss.works


def test_a_later_shape_that_the_compiler_fails_at_is_computed_as_it_is_written(monkeypatch):
    def only_once(function, **_):
        left = [lambda x: 10 * x]

        def graph(x):
            if not left:
                raise torch._dynamo.exc.BackendCompilerFailed(lambda: None, ValueError("no such shape"), None)
            return left.pop()(x)

        return graph

    monkeypatch.setattr(torch, "compile", only_once)
    said = []
    loss = Compiled(lambda x: x + 1, note=lambda line: None, say=said.append)
    assert [loss(1), loss(2), loss(3)] == [10, 3, 4]
    assert len(said) == 2
    assert "no such shape" in said[1]


@pytest.mark.usefixtures("nothing_compiles")
def test_a_resumed_run_goes_on_as_it_was_chosen_however_long_it_has_become(tmp_path, monkeypatch):
    wanted = recipe(tmp_path)
    monkeypatch.setattr("onehop.training.compiled.pays", lambda recipe, device: recipe.train.steps > 6)
    assert not onehop.train(wanted).trainer.compiled
    longer = wanted.model_copy(update={"train": wanted.train.model_copy(update={"steps": 8})})
    assert not onehop.train(longer, resume=True).trainer.compiled
    fresh = longer.model_copy(update={"out": str(tmp_path / "other")})
    assert onehop.train(fresh).trainer.compiled
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: "there is none")
    with pytest.raises(ConfigError, match="cannot be resumed bit for bit: compiled was True and is now False"):
        onehop.train(fresh, resume=True)


@pytest.mark.usefixtures("nothing_compiles")
def test_no_operation_of_a_compiled_step_is_watched(tmp_path):
    """Watched, it would be computed as it is written, with other sums: one step here, another in a resumed run."""
    assert onehop.train(recipe(tmp_path, compile="yes")).trainer.tracked.live is None


@pytest.mark.slow
def test_a_compiled_run_resumes_bit_for_bit(tmp_path):
    wanted = recipe(tmp_path, steps=6, compile="yes", eval_every=6)
    whole = onehop.train(wanted).trainer
    parts = wanted.model_copy(update={"out": str(tmp_path / "parts")})
    for resume in (False, True):
        trainer = Trainer(parts, resume=resume)
        steps = trainer.steps()
        for _ in range(3):
            next(steps)
        trainer.save()
        trainer.writer.wait()
    assert trainer.progress.step == whole.progress.step == 6
    for (name, a), b in zip(whole.model.named_parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(a, b), name


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
