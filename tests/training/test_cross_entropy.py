"""The loss whose gradient is written by hand is PyTorch's, values and gradients, and serves where it may."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from onehop.training import cross_entropy as module
from onehop.training.cross_entropy import cross_entropy, definition

Z = 0.3  # weight of the z-loss


@pytest.fixture(autouse=True, scope="module")
def of_few_ids():
    """As if it served those too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SOFTMAX_IS_KEPT", 1)
        yield


def case(n, v, *, seed=0, dtype=torch.float64, size=3.0):
    """Logits that need a gradient, and targets of which about a third do not count."""
    generator = torch.Generator().manual_seed(seed)
    logits = (size * torch.randn(n, v, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    targets = torch.randint(v, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < 0.3] = -100
    return logits, targets


def results(of, logits, targets, *, z):
    """Both sums, and the gradient of their weighted one."""
    found = of(logits, targets, z=z)
    total = found.nats if found.z is None else found.nats + Z * found.z
    (gradient,) = torch.autograd.grad(0.7 * total, logits)
    return found.nats.detach(), found.z if found.z is None else found.z.detach(), gradient


def same(logits, targets, *, z, **tolerance):
    for one, other in zip(
        results(cross_entropy, logits, targets, z=z), results(definition, logits, targets, z=z), strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **tolerance)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 9),
    v=st.integers(1, 40),
    seed=st.integers(0, 99),
    size=st.sampled_from([0.0, 3.0, 300.0]),
    z=st.booleans(),
)
def test_it_is_the_definition_whatever_the_shape_and_the_size_of_the_logits(n, v, seed, size, z):
    """float64: sums of at most 40 terms in another order, squares of log-sums up to a thousand."""
    same(*case(n, v, seed=seed, size=size), z=z, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("z", [False, True])
def test_in_float32_it_is_near_to_the_definition_in_float64(z):
    """The logits of both are float32's; 1e-5 is a hundred of its units, for sums over 5,000 exponentials."""
    logits, targets = case(64, 5000, dtype=torch.float32)
    exact = results(definition, logits.detach().double().requires_grad_(), targets, z=z)
    for one, true in zip(results(cross_entropy, logits, targets, z=z), exact, strict=True):
        if one is not None:
            torch.testing.assert_close(one.double(), true, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_widened_before_anything_is_summed(dtype):
    """The sums in float32; the gradient rounded once, to the logits' type: one unit in its last place."""
    one, other = (results(of, *case(16, 50, dtype=dtype), z=True) for of in (cross_entropy, definition))
    torch.testing.assert_close(one[:2], other[:2], rtol=1e-6, atol=0)
    assert one[2].dtype == dtype
    torch.testing.assert_close(one[2], other[2], rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_by_hand():
    """Weights 1/4, 3/4 and targets 1, none and 0: 2·ln 4 - ln 3 nats, softmax less one at the target."""
    row = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64)
    logits = torch.stack([row, row, row]).requires_grad_()
    found = cross_entropy(logits, torch.tensor([1, -100, 0]))
    found.nats.backward()
    torch.testing.assert_close(found.nats.item(), 2 * math.log(4.0) - math.log(3.0), rtol=1e-12, atol=0)
    expected = torch.tensor([[0.25, -0.25], [0.0, 0.0], [-0.75, 0.75]], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-15)
    assert found.z is None


@pytest.mark.parametrize("far", [80.0, 1e4, math.inf])
def test_a_target_whose_weight_is_next_to_zero_costs_what_it_should(far):
    """exp(-10,000) is 0 in float32; its surprise is 10,000 nats all the same, and of a logit of -inf it is infinite."""
    logits = torch.tensor([[0.0, -far], [0.0, 0.0], [-far, 0.0]], requires_grad=True)
    found = cross_entropy(logits, torch.tensor([1, 0, -100]), z=True)
    torch.testing.assert_close(found.nats.item(), far + math.log(2.0), rtol=1e-7, atol=0)
    torch.testing.assert_close(found.z.item(), math.log(2.0) ** 2, rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(found.nats, logits)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, -1.0], [-0.5, 0.5], [0.0, 0.0]]))


def test_a_logit_that_is_no_number_reaches_the_loss_and_the_gradient():
    logits, targets = case(4, 5)
    targets[0] = 2
    broken = logits.detach().index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(math.nan).double())
    nats, _, gradient = results(cross_entropy, broken.requires_grad_(), targets, z=False)
    assert nats.isnan()
    assert gradient.isnan().any(1).tolist() == [True, False, False, False]


@pytest.mark.parametrize("row", [[math.inf, 0.0, 1.0], [-math.inf] * 3, [math.nan, 0.0, 0.0]])
def test_rows_without_a_distribution_have_no_surprise(row):
    logits = torch.tensor([row, [0.0, 1.0, 2.0]], requires_grad=True)
    assert all(of(logits, torch.tensor([1, 1])).nats.isnan() for of in (cross_entropy, definition))


def test_only_the_sum_of_squares_may_be_asked_for():
    """float64: sums of seven terms in another order."""
    logits, targets = case(5, 7)
    found = [torch.autograd.grad(of(logits, targets, z=True).z, logits)[0] for of in (cross_entropy, definition)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_no_target_at_all_is_a_loss_of_zero():
    logits, targets = case(3, 4)
    nats, z, gradient = results(cross_entropy, logits, torch.full_like(targets, -100), z=True)
    assert [nats.item(), z.item(), gradient.abs().sum().item()] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("from_", "kept"), [(1000, 1), (1001, 3)])
def test_one_tensor_of_the_logits_size_waits_for_the_gradient(from_, kept, monkeypatch):
    """And by the definition of fewer ids the log-softmax, and for the z-loss the logits and their log-sum-exp's."""
    monkeypatch.setattr(module, "SOFTMAX_IS_KEPT", from_)
    logits, targets = case(32, 1000)
    sizes = []
    with saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        cross_entropy(logits * 1, targets, z=True)  # (a product with a number keeps nothing)
    assert sizes.count(logits.numel()) == kept


def test_derivatives_other_than_backward_have_the_definition():
    logits, targets = case(4, 6)

    def nats(x):
        return cross_entropy(x, targets).nats

    hessian = torch.func.hessian(nats)(logits.detach())
    p = F.softmax(logits.detach(), -1)
    expected = torch.zeros_like(hessian)
    for i in (targets != -100).nonzero().flatten():
        expected[i, :, i] = p[i].diag() - p[i].outer(p[i])
    torch.testing.assert_close(hessian, expected, rtol=1e-10, atol=1e-12)
    assert not cross_entropy(logits.detach(), targets).nats.requires_grad


@pytest.mark.parametrize("z", [False, True])
def test_second_derivatives_are_the_definitions(z):
    """A gradient's penalty, as Hessian times vector: nothing that comes to backward needs a gradient, all else does."""

    def penalties(of):
        logits, targets = case(6, 7)
        vector = torch.randn(6, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        found = of(logits * 1, targets, z=z)
        total = found.nats if found.z is None else found.nats + Z * found.z
        (gradient,) = torch.autograd.grad(total, logits, create_graph=True)
        (once,) = torch.autograd.grad((gradient * vector).sum(), logits, create_graph=True)
        (twice,) = torch.autograd.grad(once.square().sum(), logits)
        return once.detach(), twice

    for one, other in zip(penalties(cross_entropy), penalties(definition), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)  # float64, sums of seven terms, three deep


@pytest.mark.parametrize("size", [3.0, 300.0])
def test_pytorch_s_own_check_of_both_derivatives(size):
    logits, targets = case(3, 4, size=size)

    def total(x):
        found = cross_entropy(x, targets, z=True)
        return found.nats, found.z

    assert torch.autograd.gradcheck(total, (logits,), atol=1e-4, rtol=1e-4)  # its differences are good to 1e-6 of z
    assert torch.autograd.gradgradcheck(total, (logits,), atol=1e-3, rtol=1e-3)


def test_forward_mode_has_the_definition():
    logits, targets = case(4, 6)
    tangent = torch.ones_like(logits).cumsum(-1)
    with forward_ad.dual_level():
        found = cross_entropy(forward_ad.make_dual(logits, tangent), targets)
        along = forward_ad.unpack_dual(found.nats).tangent
    (gradient,) = torch.autograd.grad(definition(logits, targets).nats, logits)
    torch.testing.assert_close(along, (gradient * tangent).sum(), rtol=1e-12, atol=1e-12)  # float64, 24 terms


def test_a_target_that_is_no_id_is_refused():
    logits, _ = case(2, 3)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        cross_entropy(logits, torch.tensor([3, 0]))
