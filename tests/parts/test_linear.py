"""Prepared products equal plain ones, and are used only while they can be right."""

import copy
import io
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from onehop.parts import linear, product
from onehop.parts.linear import Linear, SideBySide, Tied, multiply_by, pack, unpack
from onehop.parts.product import in_graphs, onednn

ONEDNN = torch.backends.mkldnn.is_available()
FLOAT32 = ONEDNN and torch.backends.mkl.is_available()
BFLOAT16 = ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.fixture(params=[True, False], ids=["oneDNN for float32", "MKL for float32"])
def amd(request):
    """Both kinds of processor: those for which oneDNN is quicker in float32, and the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "made_by_amd", lambda: request.param)
        yield request.param


class Pair(nn.Module):
    """Two maps side by side, one alone, and a head tied to an embedding."""

    def __init__(self, bias=True):
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(16, 24, bias), Linear(16, 8, bias), Linear(16, 5, bias)
        self.both = SideBySide(self, "w1", "w2")
        self.rows = nn.Embedding(11, 16)
        self.head = Tied(self.rows, bias=bias)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        return torch.cat([*self.both(x), self.w3(x), self.head(x)], dim=-1)


def used(monkeypatch, model, x):
    """How many products are made with prepared weights, and the output."""
    calls = []
    plain = linear.Packed.__call__
    monkeypatch.setattr(linear.Packed, "__call__", lambda self, x: calls.append(self) or plain(self, x))
    with torch.no_grad():
        y = model(x)
    monkeypatch.undo()
    return len(calls), y


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 0.13)],  # sums of 16 products of size 1: 16 · 2^-24; outputs to 16 in bf16
)
def test_packed_products_equal_plain_ones(monkeypatch, amd, bias, dtype, tolerance):
    torch.manual_seed(0)
    model = Pair(bias).to(dtype)
    for shape in [(1, 1, 16), (3, 5, 16), (7, 16)]:
        x = torch.randn(shape).to(dtype)
        before, plain = used(monkeypatch, model, x)
        pack(model)
        after, prepared = used(monkeypatch, model, x)
        assert before == 0
        by_onednn = BFLOAT16 if dtype == torch.bfloat16 else FLOAT32 and amd
        assert after == (3 if by_onednn else 1)  # the two side by side are one product in any case
        torch.testing.assert_close(prepared, plain, atol=tolerance, rtol=0)
        unpack(model)
        assert torch.equal(used(monkeypatch, model, x)[1], plain)


def changed_by_an_optimizer(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def changed_by_loading(model):
    model.load_state_dict(Pair().state_dict())


def changed_by_assignment(model):
    model.load_state_dict(Pair().state_dict(), assign=True)


def changed_by_conversion(model):
    model.double()


@pytest.mark.parametrize(
    "change", [changed_by_an_optimizer, changed_by_loading, changed_by_assignment, changed_by_conversion]
)
def test_weights_that_have_changed_are_never_answered_from_an_old_copy(monkeypatch, amd, change):
    torch.manual_seed(0)
    model, x = Pair(), torch.randn(2, 16)
    pack(model)
    change(model)
    x = x.to(model.w1.weight.dtype)
    calls, y = used(monkeypatch, model, x)
    assert calls == 0
    unpack(model)
    assert torch.equal(y, used(monkeypatch, model, x)[1])


def test_a_changed_bias_is_noticed(monkeypatch, amd):
    model, x = Pair(), torch.randn(2, 16)
    pack(model)
    nn.init.constant_(model.w2.bias, 3.0)
    assert used(monkeypatch, model, x)[0] == (2 if FLOAT32 and amd else 0)  # w3 and the head are unchanged


def test_packing_again_renews_only_what_has_changed(amd):
    model = Pair()
    model.w4 = Linear(16, 2, bias=True)
    model.again = SideBySide(model, "w3", "w4")
    pack(model)
    before = (model.both.packed, model.again.packed)
    nn.init.zeros_(model.w3.weight)
    pack(model)
    assert model.both.packed is before[0]
    assert model.again.packed is not before[1]


def test_gradients_flow_as_if_nothing_were_packed(amd):
    torch.manual_seed(0)
    model, x = Pair(), torch.randn(2, 16)
    plain = torch.autograd.grad(model(x).square().sum(), model.w1.weight)
    pack(model)
    assert torch.equal(torch.autograd.grad(model(x).square().sum(), model.w1.weight)[0], plain[0])


def test_a_packed_model_can_be_copied_and_saved(amd):
    model, x = Pair(), torch.randn(2, 16)
    pack(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        nn.init.zeros_(twin.w1.weight)
        assert not torch.equal(twin(x), model(x))
        assert torch.equal(twin(x)[:, :24], twin.w1.bias.expand(2, -1))
    torch.save(model.state_dict(), io.BytesIO())
    assert model.state_dict().keys() == Pair().state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_onednn_does_not_serve_is_stacked_and_no_more(monkeypatch, amd, dtype):
    model, x = Pair().to(dtype), torch.randn(2, 16, dtype=dtype)
    plain = used(monkeypatch, model, x)[1]
    pack(model)
    calls, stacked = used(monkeypatch, model, x)
    assert calls == 1
    torch.testing.assert_close(stacked, plain, atol=1e-12 if dtype == torch.float64 else 0.02, rtol=0)  # outputs to 16


def test_weights_made_in_inference_mode_are_not_packed(amd):
    """They do not count their changes, so an old copy could not be told from a fresh one."""
    with torch.inference_mode():
        model = Pair()
        pack(model)
    assert model.w3.packed is model.both.packed is None


def gradients(model, x):
    """The output, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    found = [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("narrow", [0, 20, 1000])  # weights' gradients by oneDNN, turned either way, and by MKL
def test_training_by_onednn_equals_training_by_the_plain_product(monkeypatch, bias, narrow):
    monkeypatch.setattr(product, "narrow", lambda: narrow)
    torch.manual_seed(0)
    model, x = Pair(bias), torch.randn(3, 5, 16)
    plain = gradients(model, x)
    multiply_by(model, onednn)
    # sums of up to 24 products of size 1 in float32, in another order
    for a, b in zip(gradients(model, x), plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    multiply_by(model, F.linear)
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, x), plain, strict=True))


@pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no oneDNN")
def test_the_second_derivative_by_onednn_is_that_of_the_plain_product():
    torch.manual_seed(0)
    found = []
    for way in (onednn, F.linear):
        x, w = (
            torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(),
            torch.linspace(0, 1, 12).view(3, 4).requires_grad_(),
        )
        (gx,) = torch.autograd.grad(way(x, w, None).pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gx.square().sum(), (x, w)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)  # a few float32 roundings at 1


@pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("narrow", [0, 1000])
def test_in_a_graph_the_product_by_onednn_is_one_operation_with_the_same_gradients(monkeypatch, narrow):
    monkeypatch.setattr(product, "narrow", lambda: narrow)
    torch.compiler.reset()
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in ((3, 5, 16), (24, 16), (24,))]
    found = []
    for way in (F.linear, onednn, torch.compile(onednn, backend="aot_eager", fullgraph=True)):
        y = way(*given)
        found.append([y, *torch.autograd.grad(y.pow(2).sum(), given)])
    for plain, eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(eager, plain, atol=1e-4, rtol=1e-5)  # sums of up to 24 float32 products up to 100
        assert torch.equal(graph, eager)
    torch.library.opcheck(in_graphs, tuple(given))


@pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("rows", [(0,), (2, 0), ()])
@pytest.mark.parametrize("compiled", [False, True])
def test_without_rows_the_product_by_onednn_is_the_plain_one(rows, compiled):
    x, w = torch.ones(*rows, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    way = torch.compile(onednn, backend="aot_eager", fullgraph=True) if compiled else onednn
    y = way(x, w)
    assert torch.equal(y, F.linear(x, w))
    y.sum().backward()
    assert (x.grad.shape, w.grad.shape) == (x.shape, w.shape)


@pytest.mark.parametrize("case", ["float64", "autocast", "meta", "compiled in float64", "torch.func"])
def test_onednn_leaves_what_it_cannot_do_to_the_plain_product(monkeypatch, case):
    monkeypatch.setattr(product._OneDNN, "apply", lambda *args: pytest.fail("oneDNN was asked"))
    x, w = torch.randn(2, 4), torch.randn(3, 4)
    if case == "float64":
        assert torch.equal(onednn(x.double(), w.double()), F.linear(x.double(), w.double()))
    elif case == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert onednn(x, w).dtype == torch.bfloat16
    elif case == "meta":
        assert onednn(x.to("meta"), w.to("meta")).shape == (2, 3)
    elif case == "torch.func":
        assert torch.equal(torch.func.vmap(onednn, (0, None))(x, w), torch.func.vmap(F.linear, (0, None))(x, w))
    else:
        x, w = x.double(), w.double()
        assert torch.equal(torch.compile(onednn, backend="eager", fullgraph=True)(x, w), F.linear(x, w))


@pytest.mark.parametrize(
    ("about", "name", "family", "narrow"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", "", 25, 512),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", "x86_64", 26, 0),
        (None, "AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", 25, 512),
        (None, "Intel64 Family 6 Model 158 Stepping 10, GenuineIntel", None, 0),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "x86_64", None, 0),
        (None, "AMD", 0, 0),
    ],
)
def test_the_processor_says_of_which_design_it_is(monkeypatch, tmp_path, about, name, family, narrow):
    if about is not None:
        (tmp_path / "cpuinfo").write_text(about)
    monkeypatch.setattr(product, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(product.platform, "processor", lambda: name)
    product.amd_family.cache_clear()
    try:
        assert (product.amd_family(), product.narrow(), product.made_by_amd()) == (family, narrow, family is not None)
    finally:
        product.amd_family.cache_clear()


def test_importing_the_product_loads_no_compiler():
    code = "import sys, onehop.parts.linear; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_maps_side_by_side_are_one_product_while_training(monkeypatch):
    model, x, calls = Pair(), torch.randn(2, 16), []

    def counting(x, w, b):
        calls.append(tuple(w.shape))
        return F.linear(x, w, b)

    multiply_by(model, counting)
    model(x)
    assert calls == [(32, 16), (5, 16), (11, 16)]
    calls.clear()
    with torch.no_grad():
        model(x)
    assert calls == [(24, 16), (8, 16), (5, 16), (11, 16)]


def test_a_map_that_is_listened_to_runs_by_itself():
    model, heard = Pair(), []
    model.w2.register_forward_hook(lambda module, inputs, output: heard.append(output.shape))
    model(torch.randn(2, 16))
    assert heard == [(2, 8)]


class Adapted(Linear):
    """A map with something added, as an adapter or a quantised layer would have it."""

    def forward(self, x):
        return super().forward(x) + 1


def doubled(model):
    """Replace w2 by another plain map with twice its weights."""
    new = Linear(16, 8, bias=True)
    new.load_state_dict({name: 2 * value for name, value in model.w2.state_dict().items()})
    model.w2 = new


def adapted(model):
    """Replace w2 by a map of another class."""
    new = Adapted(16, 8, bias=True)
    new.load_state_dict(model.w2.state_dict())
    model.w2 = new


def patched(model):
    """Give w2 another forward, as offloading libraries do."""
    plain = model.w2.forward
    model.w2.forward = lambda x: plain(x) - 1


def listened_to(model):
    """Let a hook change the output of w2."""
    model.w2.register_forward_hook(lambda module, inputs, output: 3 * output)


class Twice(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


def parametrized(model):
    """Compute the weight of w2 anew at each call, as weight norms and PyTorch's own adapters do."""
    parametrize.register_parametrization(model.w2, "weight", Twice())


def without_bias(model):
    """Take away the bias of w2 alone."""
    model.w2.bias = None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("packed", [None, "before", "after"])
@pytest.mark.parametrize("change", [doubled, adapted, patched, listened_to, without_bias, parametrized])
def test_a_map_that_is_replaced_or_changed_is_the_one_that_is_used(amd, change, packed, grad):
    torch.manual_seed(0)
    model, x = Pair(), torch.randn(2, 16)
    if packed == "before":
        pack(model)
    change(model)
    if packed == "after":
        pack(model)
    weight, bias = model.w2.weight.detach().clone(), 0 if model.w2.bias is None else model.w2.bias.detach()
    with torch.set_grad_enabled(grad):
        both = model(x)[:, :32]
        one_by_one = torch.cat([model.w1(x), model.w2(x)], dim=-1)
    # sums of 16 products of size 1 in float32, in another order
    torch.testing.assert_close(both, one_by_one, atol=1e-5, rtol=1e-5)
    if change in (doubled, without_bias, parametrized):
        torch.testing.assert_close(both[:, 24:], x @ weight.T + bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: Linear(16, 24, bias=True), lambda: Tied(nn.Embedding(24, 16), bias=True)])
@torch.no_grad()
def test_a_bias_that_is_computed_anew_at_each_call_is_never_an_old_one(amd, make):
    m, x = make(), torch.randn(3, 16)
    parametrize.register_parametrization(m, "bias", Twice())
    pack(nn.Sequential(m))
    m(x)
    m.parametrizations.bias.original.add_(1.0)
    # sums of 16 products of size 1 in float32, in another order
    torch.testing.assert_close(m(x), x @ m.weight.T + 2 * m.parametrizations.bias.original, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_compiler_is_given_the_weights_themselves():
    """It can read no prepared ones (here: zeros)."""
    m, x = Linear(4, 3), torch.ones(2, 4)
    m.packed = linear.Packed(torch.zeros(3, 4), None, [m])
    assert not m(x).any()
    assert torch.equal(torch.compile(m, backend="eager")(x), F.linear(x, m.weight))
