"""The compiled loss: said when it is made, said when it cannot be, and the same numbers."""

from dataclasses import replace

import pytest
import torch

import onehop
from onehop.base.errors import ConfigError
from onehop.config.recipe import TrainConfig
from onehop.config.task import PairsConfig
from onehop.cost.memory import SOFTMAX_IS_KEPT
from onehop.cost.planned import Plan
from onehop.model import compiler
from onehop.model.compiler import apart
from onehop.model.recompute import recompute
from onehop.training import saving
from onehop.training.checkpoints import read_about
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
    assert not picks(recipe(tmp_path, compile="yes"), wanted=False)  # it could not be had there


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


def failing(monkeypatch, *, graphs=0):
    """A compiler that makes so many graphs, one for each shape, and fails at the next; what Compiled said."""

    def compiles(function, **_):
        made = set()

        def graph(model, batch, **options):
            if batch.tokens.shape not in made and len(made) == graphs:
                raise torch._dynamo.exc.BackendCompilerFailed(lambda: None, ValueError("no headers"), None)
            made.add(batch.tokens.shape)
            return function(model, batch, **options)

        return graph

    monkeypatch.setattr(torch, "compile", compiles)
    said = []
    return Compiled(batch_loss, note=lambda line: None, say=said.append), said


@pytest.mark.parametrize("graphs", [0, 1])
def test_what_the_compiler_fails_at_is_said_once_and_computed_as_it_is_written(monkeypatch, graphs):
    loss_of, said = failing(monkeypatch, graphs=graphs)
    model = small_model(decoder(), dtype=torch.float32)
    for length in (8, 6, 8):
        rows = batch(16, rows=2, length=length, seed=0)
        assert torch.equal(loss_of(model, rows).surprise, batch_loss(model, rows).surprise)
    assert [line.split(" in ")[0] for line in said[:-1]] == ["compiled"] * graphs
    assert said[-1].startswith("not compiled: ")
    assert "no headers" in said[-1]
    assert not loss_of.works
    assert all(p.grad is None for p in model.parameters())


def test_a_way_back_that_the_compiler_fails_at_is_no_end_of_the_run(monkeypatch):
    """It is compiled when it is first gone: for a trial, before the step's own."""

    class Forth(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise torch._inductor.exc.InductorError(ImportError("main.so: file too short"), None)

    def compiles(function, **_):
        return lambda *args, **options: replace(
            found := function(*args, **options), surprise=Forth.apply(found.surprise)
        )

    monkeypatch.setattr(torch, "compile", compiles)
    said, model, rows = [], small_model(decoder(), dtype=torch.float32), batch(16, rows=2, length=8, seed=0)
    loss_of = Compiled(batch_loss, note=len, say=said.append)
    loss_of(model, rows).surprise.backward()
    assert len(said) == 1
    assert "file too short" in said[0]


@pytest.mark.usefixtures("nothing_compiles")
@pytest.mark.parametrize(("sees", "graphs"), [("causal", 1), ("all", 2)])
def test_padding_has_a_graph_of_its_own_where_the_model_looks_at_it(sees, graphs):
    said, model = [], small_model(decoder(attention={"sees": sees}), dtype=torch.float32)
    loss_of = Compiled(batch_loss, note=len, say=said.append)
    for padded in (False, True, False):
        loss_of(model, replace(batch(16, rows=2, length=8, seed=0), padded=padded))
    assert len(said) == graphs


def test_each_run_has_graphs_of_its_own():
    """Dynamo counts them by a function's code, and beyond eight computes as it is written without a word."""
    twins = [apart(batch_loss) for _ in range(3)]
    assert len({id(twin.__code__) for twin in (batch_loss, *twins)}) == 4
    model, rows = small_model(decoder(), dtype=torch.float32), batch(16, rows=2, length=8, seed=0)
    found = [twin(model, rows, kernel="plain", z=True) for twin in (batch_loss, *twins)]
    assert all(torch.equal(loss.z, found[0].z) for loss in found)


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


def test_a_run_that_could_not_be_compiled_goes_on_as_it_is_written(tmp_path, monkeypatch):
    wanted = recipe(tmp_path, compile="yes")
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: "there is none")
    onehop.train(wanted)
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: None)
    longer = wanted.model_copy(update={"train": wanted.train.model_copy(update={"steps": 8})})
    assert not onehop.train(longer, resume=True).trainer.compiled


@pytest.mark.usefixtures("nothing_compiles")
def test_a_checkpoint_that_does_not_tell_was_not_compiled_on_a_cpu(tmp_path, monkeypatch):
    wanted = recipe(tmp_path)
    onehop.train(wanted)
    monkeypatch.setattr("onehop.training.compiled.pays", lambda recipe, device: True)
    monkeypatch.setattr(saving, "read_about", lambda path: without(read_about(path)))
    longer = wanted.model_copy(update={"train": wanted.train.model_copy(update={"steps": 8})})
    assert not onehop.train(longer, resume=True).trainer.compiled


def without(about):
    return {**about, "machine": {key: value for key, value in about["machine"].items() if key != "compiled"}}


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
def test_what_is_no_single_graph_is_not_compiled():
    """Experts in float32 on a CPU: their loop stands outside of graphs."""
    config, said = decoder(ffn=MOE), []
    loss_of = Compiled(batch_loss, note=len, say=said.append)
    assert losses(config, "none", loss_of) == losses(config, "none", batch_loss)
    assert not loss_of.works
    assert said[0].startswith("not compiled: ")
    assert len(said) == 1


GPT2 = {"attention": {"n_heads": 4, "bias": True, "position": "none"}, "norm": "layer", "final_norm": "layer"}


ONE_GRAPH = {
    "Llama's parts": {},
    "GPT-2's": {**GPT2, "embed": {"position": "learned"}},
    "many ids": {"vocab_size": SOFTMAX_IS_KEPT},  # whose loss has a gradient by hand where nothing is compiled
}


@pytest.mark.parametrize("parts", ONE_GRAPH.values(), ids=list(ONE_GRAPH))
def test_the_loss_is_one_graph(parts):
    """`fullgraph` refuses anything that would break it; what is made of the graph is the slow tests' business."""
    model, rows = small_model(decoder(**parts), dtype=torch.float32), batch(16, rows=2, length=8)
    torch.compiler.reset()
    graph = torch.compile(batch_loss, backend="eager", fullgraph=True)
    assert float(graph(model, rows).surprise) == pytest.approx(float(batch_loss(model, rows).surprise), rel=1e-5)
