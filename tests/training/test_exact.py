"""Precision and repetition: what stays in float32, how float16 is scaled, and that a seed decides the whole run."""

import math
import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.base.errors import ConfigError
from onehop.config import load_own, own
from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch, joined
from onehop.parts.own import TABLES
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.randomness import Generators
from onehop.training.setup import computing, loss_scaler, repeating
from onehop.training.step import training_step
from onehop.training.trainer import Trainer
from tests.small_models import VOCABULARY, decoder, small_model
from tests.training.small_runs import recipe

MOE = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "loss"}
CPU = torch.device("cpu")
# What must not be rounded to 16 bits: sums of exponents, of squares and of probabilities, and angles.
SENSITIVE = {
    "_softmax",
    "_log_softmax",
    "nll_loss_forward",
    "logsumexp",
    "exp",
    "rsqrt",
    "mean",
    "sin",
    "cos",
    "sigmoid",
}


class Dtypes(TorchDispatchMode):
    """Notes the dtypes of the operands of sensitive operations, and of products."""

    def __init__(self):
        super().__init__()
        self.seen, self.products = {}, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        floats = {x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()}
        if name in SENSITIVE:
            self.seen.setdefault(name, set()).update(floats)
        if name in ("mm", "addmm", "bmm"):
            self.products |= floats
        return function(*args, **(kwargs or {}))


def rows(n=2, length=8):
    tokens = torch.randint(VOCABULARY, (n, length + 1), generator=torch.Generator().manual_seed(0))
    at, doc = torch.arange(length).expand(n, length), torch.zeros(n, length, dtype=torch.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], doc, at, n * length, packed=False, padded=False)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_norms_softmax_angles_router_and_loss_stay_in_float32(precision, gate):
    model = small_model(decoder(ffn={**MOE, "gate": gate}), dtype=torch.float32)
    with Dtypes() as dtypes, computing(CPU, precision):
        loss = batch_loss(model, rows(), kernel="plain")
    wanted = {"_softmax", "_log_softmax", "nll_loss_forward", "rsqrt", "sin", "cos"}
    assert dtypes.seen.keys() >= wanted | ({"sigmoid"} if gate == "sigmoid" else set())
    assert all(found <= {torch.float32, torch.float64} for found in dtypes.seen.values()), dtypes.seen
    assert precision in dtypes.products
    assert loss.surprise.dtype == loss.router.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters())


def settings(**own):
    return TrainConfig(**{"steps": 10, "batch_size": 4, "lr": 1e-2, "clip": None, "weight_decay": 0.0, **own})


def seen_gradients(model, scaler, *, clip=None):
    """The gradients that the optimizer gets in one float16 step, and the step's result."""
    seen = {}

    class Look(torch.optim.SGD):
        def step(self):
            seen.update({name: p.grad.clone() for name, p in model.named_parameters()})

    optimizer = Look(model.parameters(), lr=0.0)
    options = {"index": 0, "cfg": settings(clip=clip), "precision": torch.float16, "scaler": scaler}
    return seen, training_step(model, optimizer, [rows()], **options)


def test_a_scaled_loss_gives_the_gradients_of_the_unscaled_one_and_is_clipped_as_those():
    """In float32 parts exactly, in float16 parts within its rounding, 2^-11; small gradients are better, not other."""
    model = small_model(decoder(), dtype=torch.float32)
    plain, without = seen_gradients(model, None)
    scaled, with_it = seen_gradients(model, torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert with_it.grad_norm == pytest.approx(without.grad_norm, rel=2e-3)
    for name, gradient in plain.items():
        torch.testing.assert_close(scaled[name], gradient, rtol=1e-2, atol=1e-2 * float(gradient.abs().max()))
    clipped, _ = seen_gradients(model, torch.amp.GradScaler("cpu", init_scale=1024.0), clip=with_it.grad_norm / 4)
    norms = [torch.nn.utils.get_total_norm(found.values()) for found in (clipped, scaled)]
    assert float(norms[0]) == pytest.approx(float(norms[1]) / 4, rel=1e-4)


def test_a_scale_that_is_too_high_costs_a_step_and_is_halved_and_is_no_fault_of_the_rows(tmp_path):
    trainer = Trainer(recipe(tmp_path, precision="float16", steps=40, max_skipped=40))
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    (first, *_, last) = trainer.steps()
    assert first.skipped
    assert math.isfinite(first.loss)
    assert not last.skipped
    assert trainer.scaler.get_scale() < 2.0**40
    assert not (tmp_path / "out" / "skipped.jsonl").exists()


def test_float16_learns_as_float32_does():
    """Twelve steps on the same rows; the losses stay within 1 % of each other: float16 rounds to 2^-11."""
    found = []
    for precision in (torch.float32, torch.float16):
        model = small_model(decoder(attention={"d_head": 64}), dtype=torch.float32)
        optimizer, scaler = make_optimizer(model, settings(lr=3e-3)), loss_scaler(CPU, precision)
        options = {"cfg": settings(lr=3e-3), "precision": precision, "scaler": scaler}
        found.append([training_step(model, optimizer, [rows()], index=i, **options).loss for i in range(12)])
    assert loss_scaler(CPU, torch.bfloat16) is None
    exact, rounded = map(torch.tensor, found)
    assert exact[-1] < 0.8 * exact[0]
    torch.testing.assert_close(rounded, exact, rtol=0.01, atol=0)


def test_deterministic_is_asked_of_torch_inside_the_run_only(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "onehop.training.trainer.training_step",
        lambda *args, **more: (
            asked.append(torch.are_deterministic_algorithms_enabled()) or training_step(*args, **more)
        ),
    )
    for wanted in (True, False):
        for _ in Trainer(recipe(tmp_path, deterministic=wanted, steps=1), fresh=True).steps():
            assert not torch.are_deterministic_algorithms_enabled()
    assert asked == [True, False]


def test_an_algorithm_that_does_not_repeat_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^train\.deterministic=true cannot be honoured: .*Set train\.determ.*false"):
        with repeating(True):
            raise RuntimeError("x_cuda does not have a deterministic implementation, but you set 'torch.use'. You can")
    with pytest.raises(RuntimeError, match="another"), repeating(True):
        raise RuntimeError("another")
    assert not torch.are_deterministic_algorithms_enabled()


def test_nothing_in_a_step_draws_from_the_processs_generators(tmp_path):
    """Dropout, experts and 16 bits included: so the states belong to the checkpoints of models with own parts only."""
    model = {"dropout": {"embed": 0.1, "attention": 0.1, "residual": 0.1}, "ffn": MOE}
    trainer = Trainer(recipe(tmp_path, model=model, precision="bfloat16", steps=3))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    for _ in trainer.steps():
        pass
    trainer.evaluate()
    assert before[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_runs_generators_are_its_own_and_go_on_where_they_were():
    generators = Generators(7, CPU)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    outside = [drawn() for _ in range(2)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    found = []
    with generators.inside():
        found.append(drawn())
    first = drawn()
    kept = {name: tensor.clone() for name, tensor in generators.tensors().items()}, generators.about()
    with generators.inside():
        found.append(drawn())
    assert [first, drawn()] == outside
    again = Generators(0, CPU)
    again.restore(*kept)
    with again.inside():
        assert drawn() == found[1]
    with Generators(7, CPU).inside():
        assert [drawn(), drawn()] == found


OWN = """
import random
import numpy as np
import torch
from torch import nn
import onehop
from onehop.config import PositionConfig
from onehop.parts import PositionScheme

class NoiseConfig(PositionConfig):
    kind: str = "noise"

@onehop.part("position", NoiseConfig)
class Noise(PositionScheme):
    biases = True
    def __init__(self, cfg, attention):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(attention.n_heads))
    def forward(self, q_at, k_at):
        distance = (q_at.unsqueeze(-1) - k_at.unsqueeze(-2)).abs().float()
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return -(noise * self.rate).view(-1, 1, 1) * distance.unsqueeze(1)
"""


@pytest.fixture
def _no_kind_stays(monkeypatch):
    for configs, parts, _ in TABLES.values():
        for table in (configs, parts):
            monkeypatch.setattr(table, "_rows", dict(table._rows))
            monkeypatch.setattr(table, "_own", dict(table._own))
    monkeypatch.setattr(own, "_DONE", {})


@pytest.mark.usefixtures("_no_kind_stays")
def test_a_part_of_ones_own_that_draws_at_random_resumes_bit_for_bit(tmp_path):
    """nn.Dropout in a user's part, say: torch's, numpy's and Python's generators are kept too."""
    (tmp_path / "own_noise.py").write_text(OWN)
    load_own(tmp_path / "own_noise.py")
    model = {"parts": [str(tmp_path / "own_noise.py")], "attention": {"n_heads": 2, "position": {"kind": "noise"}}}
    whole = Trainer(recipe(tmp_path, model=model))
    losses = []
    for result in whole.steps():
        losses.append(result.loss)
        if result.step == 3:
            whole.save()
            drawn()  # what others draw meanwhile changes nothing
    again = Trainer(recipe(tmp_path, model=model), resume=True)
    assert [result.loss for result in again.steps()] == losses[3:]
    assert [result.loss for result in Trainer(recipe(tmp_path, model=model), fresh=True).steps()] == losses


def test_joined_documents_see_each_other_and_separate_ones_do_not():
    """Documents (5 3) and (4 1 7) in one row: joined, they cost what the row costs as one text without the seam."""
    tokens = torch.tensor([[5, 3, 4, 1, 7, 0]])
    targets = torch.tensor([[3, -100, 1, 7, -100, -100]])
    doc = torch.tensor([[0, 0, 1, 1, 1, -1]], dtype=torch.int32)
    at = torch.tensor([[0, 1, 0, 1, 2, -1]])
    apart = Batch(tokens, targets, doc, at, 3, packed=True, padded=True)
    one = joined(apart)
    assert one.at.tolist() == [[0, 1, 2, 3, 4, -1]]
    assert one.doc.tolist() == [[0, 0, 0, 0, 0, -1]]
    model = small_model(decoder())
    surprise = float(batch_loss(model, one).surprise.detach())
    logits = model(tokens[:, :5])[0].log_softmax(-1)
    assert surprise == pytest.approx(-float(logits[[0, 2, 3], [3, 1, 7]].detach().sum()), rel=1e-10)  # float64
    assert surprise != pytest.approx(float(batch_loss(model, apart).surprise.detach()), rel=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_a_run_with_uneven_rows_and_accumulation_is_the_run_with_large_batches(tmp_path, micro_batch):
    """Rows of whole documents hold different numbers of targets; only the order of float32 sums may differ."""
    runs = []
    for name, rows_at_once in (("whole", None), ("cut", micro_batch)):
        (tmp_path / name).mkdir()
        runs.append(Trainer(recipe(tmp_path / name, context=9, micro_batch=rows_at_once, steps=4, lr=1e-3)))
    whole, cut = runs
    assert len({cut.loader.batch(i).n_targets for i in range(8)}) > 1
    for a, b in zip(whole.steps(), cut.steps(), strict=True):
        assert a.targets == b.targets
        assert b.loss == pytest.approx(a.loss, rel=1e-5)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-4)
