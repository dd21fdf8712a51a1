"""The loss in chunks is the loss at once, for every head, and never holds the logits of all tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from onehop.config.model import HeadConfig
from onehop.model.transformer import Head
from onehop.parts.linear import Linear
from onehop.training import surprise as module
from onehop.training.surprise import HAS_LIBRARY, in_chunks, library_serves, surprise
from tests.small_models import decoder, small_model

HEADS = {
    "tied": {"tied": True},
    "its own": {"tied": False},
    "bias": {"tied": False, "bias": True},
    "tied, bias": {"tied": True, "bias": True},
    "scale": {"scale": 0.25},
    "scale and bias": {"tied": False, "scale": 0.25, "bias": True},
    "softcap": {"softcap": 3.0, "scale": 2.0},
    "hidden layer": {"transform": {"activation": "gelu"}, "tied": True},
}
N = 11


def case(head, *, dtype=torch.float64, **own):
    """A head, hidden states that need a gradient, and targets, a few of which do not count."""
    model = small_model(decoder(head=head, **own), dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, 16, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(13, (N,), generator=generator)
    targets[[0, 4, 5]] = -100
    return model, hidden, targets


def twin(head, hidden, targets, **options):
    """Never PyTorch's own function."""
    return in_chunks(head, head.narrow(head.transform(hidden)), targets, **options)


def results(model, hidden, targets, *, of=surprise, z_weight=0.1, **options):
    """The sums and all gradients."""
    found = of(model.head, hidden, targets, **options)
    total = found.nats if found.z is None else found.nats + z_weight * found.z
    total.backward()
    gradients = [p.grad for p in model.head.parameters()] + [model.embed.tokens.weight.grad, hidden.grad]
    return [total.detach(), found.nats.detach(), *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("z", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 11])
def test_in_chunks_of_any_size_the_loss_and_its_gradients_are_those_at_once(head, z, chunk):
    """float64: the order of sums of 11 terms differs."""
    whole = results(*case(HEADS[head]), z=z)
    for of in (surprise, twin):  # the first is PyTorch's own where that serves
        found = results(*case(HEADS[head]), of=of, z=z, chunk=chunk)
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_pytorch_computes_what_it_can_and_nothing_else():
    served = {name for name in HEADS if library_serves(case(HEADS[name])[0].head, case(HEADS[name])[1], z=False)}
    assert served == (HEADS.keys() - {"softcap", "scale and bias"} if HAS_LIBRARY else set())
    model, hidden, _ = case(HEADS["tied"])
    assert not library_serves(model.head, hidden, z=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not library_serves(model.head, hidden.float(), z=False)
    model.head.projection.register_forward_hook(lambda *_: None)  # someone who listens
    assert not library_serves(model.head, hidden, z=False)


def test_without_pytorchs_function_the_twin_serves(monkeypatch):
    monkeypatch.setattr(module, "HAS_LIBRARY", False)
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    whole, found = results(*case(HEADS["tied"])), results(*case(HEADS["tied"]), chunk=3)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


def test_in_sixteen_bits_the_sum_keeps_its_digits():
    """Logits in bfloat16, as at once; the sum in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = results(*case(HEADS["tied"], dtype=torch.float32))
        found = results(*case(HEADS["tied"], dtype=torch.float32), chunk=4)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[:2], whole[:2], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2:], whole[2:], rtol=0.02, atol=0.02)  # gradients of parts, summed in bfloat16


def test_the_z_loss_by_hand():
    """Logits (0, 0), (ln 3, 0), (5, 5) of which the last does not count: squares of ln 2 and of ln 4."""
    model, _, _ = case({"tied": False}, vocab_size=2)
    with torch.no_grad():
        model.head.projection.weight.copy_(torch.eye(2, 16))
    hidden = torch.zeros(3, 16, dtype=torch.float64)
    hidden[1, 0], hidden[2, :2] = torch.tensor(3.0).log(), 5.0
    found = surprise(model.head, hidden, torch.tensor([0, 1, -100]), z=True)
    ln2 = torch.tensor(2.0, dtype=torch.float64).log()
    torch.testing.assert_close(found.z, ln2**2 + (2 * ln2) ** 2, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.nats, 3 * ln2, rtol=1e-7, atol=0)  # ln 2, and ln 4 for a quarter


class Largest(TorchDispatchMode):
    """The most numbers that any operation gives, and of which shape."""

    def __init__(self):
        super().__init__()
        self.shape = torch.Size()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.numel() > self.shape.numel():
                self.shape = tensor.shape
        return out


def wide_case():
    """64 tokens, 640 ids, rows of 8: logits are by far the largest."""
    model = small_model(decoder(vocab_size=640, d_model=8, attention={"n_heads": 2}), dtype=torch.float32)
    return model, torch.randn(64, 8).requires_grad_(), torch.arange(64)


@pytest.mark.parametrize("z", [False, True])
def test_no_operation_of_the_twin_gives_more_than_a_chunk_of_logits(z):
    """Neither forward nor backward; at once the same look finds all of them."""
    for options, shape in (({"of": twin, "chunk": 16}, (16, 640)), ({}, (64, 640))):
        with Largest() as largest:
            results(*wide_case(), z=z, **options)
        assert largest.shape == shape


@pytest.mark.skipif(not HAS_LIBRARY, reason="this PyTorch has no linear_cross_entropy")
def test_no_memory_that_pytorchs_function_asks_for_holds_more_than_a_chunk_of_logits():
    """Its operations are hidden from a dispatch mode: the profiler sees what they allocate."""
    activity = [torch.profiler.ProfilerActivity.CPU]
    for chunk, largest in ((16, 16), (None, 64)):
        with torch.profiler.profile(activities=activity, profile_memory=True) as seen:
            results(*wide_case(), chunk=chunk)
        assert max(event.self_cpu_memory_usage for event in seen.events()) == largest * 640 * 4


# Sixteen rows of which eight have targets (1, 4, 0 and 3 in each four), and the loss and gradient of their mean: a
# closed form in numpy, and autograd over the whole batch, in float64.
WEIGHT = [
    [-0.87718248274177313, -0.35248454846441746, -0.85741450730711222],
    [-0.097550731152296066, -0.98744362872093916, 0.12833528406918049],
    [0.44175780098885298, -0.011113166809082031, -0.99403852876275778],
    [-0.60706269927322865, 0.68115326669067144, -0.025281865149736404],
    [0.38524316716939211, 0.0035191867500543594, 0.22869848739355803],
]
ROWS = [
    [-0.97913536056876183, -0.30618329951539636, 1.2203762540593743],
    [-0.0094700432382524014, 0.9157965537160635, -0.65584528120234609],
    [0.83191640954464674, 1.4981984314508736, 1.1411437466740608],
    [0.19126140838488936, 0.93291348684579134, 1.0004549534060061],
    [1.0193096492439508, -0.68368027405813336, -1.128910937346518],
    [0.39089474128559232, 0.19899926707148552, -0.04277197876945138],
    [0.36911130789667368, 1.3658855357207358, -1.4071587491780519],
    [0.14690570114180446, 0.78741237055510283, 1.0091623258776963],
    [1.2857130914926529, -0.84176048124209046, -0.68916611652821302],
    [0.073687701020389795, 0.44501944072544575, -0.8380795125849545],
    [1.340350597165525, 0.61702782707288861, -0.23582644388079643],
    [-0.99657858023419976, -1.1288778623566031, 1.1464940481819212],
    [1.4705318715423346, -0.49463490815833211, 1.138122889213264],
    [-1.0696998867206275, 0.42903169244527817, -0.79846696788445115],
    [0.31060000229626894, -1.3690149723552167, 1.3727820161730051],
    [-0.091235064435750246, -1.4833904737606645, 0.91735152946785092],
]
LABELS = [2, -100, -100, -100, 0, 1, 4, 3, -100, -100, -100, -100, 1, -100, 2, 2]
MEAN = 2.203398312341
GRADIENT = [
    [-0.1091713106926, 0.07281854430732, 0.1524779664212],
    [-0.1628477404052, -0.2176901827463, 0.1318560356429],
    [0.2190709401162, 0.4258113064644, -0.5539033262292],
    [-0.008890141793379, -0.05225716913472, -0.06106376161655],
    [0.06183825277499, -0.2286824988906, 0.3306330857816],
]


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("n_rows", [16, 8, 4, 3, 1])
def test_however_rows_are_cut_into_micro_batches_the_loss_and_gradient_are_those_known(n_rows, chunk):
    """Sums over the targets, divided once by their number; a mean of the means of four rows each would be 1.869."""
    projection = Linear(3, 5, bias=False)
    projection.weight = torch.nn.Parameter(torch.tensor(WEIGHT, dtype=torch.float64))
    head = Head(projection, HeadConfig(tied=False), transform=torch.nn.Identity(), narrow=torch.nn.Identity())
    rows, labels = torch.tensor(ROWS, dtype=torch.float64), torch.tensor(LABELS)
    n_targets = int((labels != -100).sum())
    total = 0.0
    for x, wanted in zip(rows.split(n_rows), labels.split(n_rows), strict=True):
        loss = surprise(head, x, wanted, chunk=chunk).nats / n_targets
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(MEAN, abs=1e-11)  # the digits that are known
    torch.testing.assert_close(projection.weight.grad, torch.tensor(GRADIENT, dtype=torch.float64), rtol=0, atol=1e-11)
