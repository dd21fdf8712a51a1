"""One product per expert: the grouped kernel equals the loop over experts, gradients included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.parts.grouped import Groups, grouped_linear, plain_grouped_linear

ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}


def _ends(sizes):
    return torch.tensor(sizes).cumsum(0, dtype=torch.int32)


def _tensors(sizes, *, d_in, d_out, dtype, bias):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    e = len(sizes)
    return normal(sum(sizes), d_in), normal(e, d_out, d_in), normal(e, d_out) if bias else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("widths", [(16, 24), (5, 7)], ids=["aligned", "odd"])
@pytest.mark.parametrize("sizes", [[3, 0, 5, 1], [0, 0, 0, 2], [4, 0, 0, 0], [0, 0]], ids=str)
def test_the_grouped_product_equals_the_loop_in_value_and_gradient(sizes, widths, dtype, bias):
    x, w, b = _tensors(sizes, d_in=widths[0], d_out=widths[1], dtype=dtype, bias=bias)
    got, want = (f(x, w, _ends(sizes), b) for f in (grouped_linear, plain_grouped_linear))
    assert got.shape == want.shape == (sum(sizes), widths[1])
    # sums of up to 24 products in another order, then one rounding to dtype
    torch.testing.assert_close(got, want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    leaves = [leaf for leaf in (x, w, b) if leaf is not None]
    for a, c in zip(*(torch.autograd.grad(y.square().sum(), leaves, retain_graph=True) for y in (got, want))):
        torch.testing.assert_close(a, c, rtol=4 * ROUNDING[dtype], atol=64 * ROUNDING[dtype])


@pytest.mark.parametrize(
    "lay_out", [lambda y: y.sum(), lambda y: (y.T * torch.arange(6.0)).sum(), lambda y: y[:, 1].sum()]
)
def test_gradients_may_come_in_any_layout(lay_out):
    x, w, _ = _tensors([2, 0, 4], d_in=16, d_out=24, dtype=torch.float32, bias=False)
    got, want = (
        torch.autograd.grad(lay_out(f(x, w, _ends([2, 0, 4]))), [x, w]) for f in (grouped_linear, plain_grouped_linear)
    )
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


def test_each_row_is_multiplied_by_its_expert_solved_by_hand():
    x = torch.tensor([[1.0], [2.0], [3.0]])
    w, b = torch.tensor([[[10.0]], [[5.0]], [[100.0]]]), torch.tensor([[1.0], [0.0], [2.0]])
    for f in (grouped_linear, plain_grouped_linear):
        assert f(x, w, _ends([1, 0, 2]), b).flatten().tolist() == [11.0, 202.0, 302.0]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=0, max_size=12))
def test_groups_are_a_sorted_permutation_with_its_inverse(rows):
    indices = torch.tensor(rows, dtype=torch.int64).view(-1, 3)
    groups = Groups.of(indices, 6)
    flat = indices.flatten()
    assert flat[groups.order].tolist() == sorted(flat.tolist())
    assert torch.equal(groups.order[groups.back()], torch.arange(flat.numel()))
    assert groups.ends.tolist() == [sum(i <= e for i in flat.tolist()) for e in range(6)]


def test_visits_of_one_expert_keep_the_order_of_the_tokens():
    assert Groups.of(torch.tensor([[1], [0], [1], [0]]), 2).order.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_compiled_product_gives_the_same(dtype):
    x, w, b = _tensors([3, 0, 5, 1], d_in=16, d_out=24, dtype=dtype, bias=True)
    torch.compiler.reset()
    compiled = torch.compile(grouped_linear, backend="eager", fullgraph=dtype == torch.bfloat16)
    got, want = compiled(x, w, _ends([3, 0, 5, 1]), b), grouped_linear(x, w, _ends([3, 0, 5, 1]), b)
    assert torch.equal(got, want)
    for a, c in zip(*(torch.autograd.grad(y.sum(), [x, w, b]) for y in (got, want))):
        assert torch.equal(a, c)
