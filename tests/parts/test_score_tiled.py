"""Attention over tiles equals the definition, and never holds a matrix of all queries by all keys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onehop.base.errors import OnehopError
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_tiled import tiled, why_not_tiled
from onehop.parts.sight import Sees, Sight
from tests.score_cases import BIASES, problem, problems


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return out


@settings(deadline=None, max_examples=120)
@given(problem=problems, tile=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_tiles_give_the_values_and_gradients_of_the_definition(problem, tile):
    """Over T ≠ S, groups of heads, rows without keys, documents, windows, prefixes, biases, caps, sinks and dropout."""
    for ours, theirs in zip(problem.solve(tiled, tile=tile), problem.solve(plain)):
        # float64, sums in another order: 1e-10 is a million of its steps at 1.0, and all numbers here are below 100
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_are_those_of_finite_differences(bias, softcap):
    p = problem(t=4, s=5, bias=bias, softcap=softcap, sinks=True, layout="padded")

    def y(q, k, v, sinks):
        rule = ScoreRule(p.rule.scale, softcap=softcap, bias=p.rule.bias, sinks=sinks)
        return tiled(q, Keys(k, v, p.keys.places), rule, p.sight, tile=(2, 2))

    assert torch.autograd.gradcheck(y, (p.q, p.keys.k, p.keys.v, p.rule.sinks))


@pytest.mark.parametrize("layout", ["run", "padded", "documents"])
@pytest.mark.parametrize("bias", ["none", *BIASES])
@pytest.mark.parametrize("sees", [Sees("causal"), Sees("all", window=40), Sees("prefix")])
def test_no_matrix_of_queries_by_keys_is_ever_held(layout, bias, sees):
    """With 12 × 12 tiles over 96 × 96 scores, nothing that is made is larger than the inputs or a few tiles."""
    t, heads, d = 96, 2, 8
    p = problem(
        1,
        t,
        t,
        heads=heads,
        n_kv=1,
        d=d,
        dv=d,
        layout=layout,
        bias=bias,
        sees=sees,
        softcap=5.0,
        sinks=True,
        dropout=0.1,
    )
    with Largest() as largest:
        p.solve(tiled, tile=(12, 12))
    assert (
        largest.elements <= t * heads * d < t * t
    )  # the queries themselves; a mask shared by all heads would be t · t


def test_the_measure_of_memory_sees_what_the_definition_holds():
    t = 96
    p = problem(1, t, t, d=8, dv=8)
    with Largest() as largest:
        p.solve(plain)
    assert largest.elements >= 4 * t * t


def test_tiles_that_nobody_sees_are_not_computed():
    """A causal triangle over 8 × 8 tiles has 36, a window of one tile 15 of them; documents of one tile have 8."""
    t = 64
    docs = Places(torch.arange(t).unsqueeze(0) % 8, torch.arange(t).unsqueeze(0) // 8)
    run = Places.run(0, t)
    for sees, at, expected in ((Sees("causal"), run, 36), (Sees("causal", 8), run, 15), (Sees("causal"), docs, 8)):
        p = problem(1, t, t, heads=1, n_kv=1)
        p.sight = Sight(sees, at, at)
        count = Products()
        with count, torch.no_grad():
            tiled(p.q, p.keys, p.rule, p.sight, tile=(8, 8))
        assert count.n == 2 * expected  # q·kᵀ and weights · v


class Products(TorchDispatchMode):
    """Counts matrix products."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func.overloadpacket.__name__ in ("bmm", "baddbmm_", "baddbmm")
        return func(*args, **(kwargs or {}))


def test_other_holders_of_keys_are_read_by_tiles_only():
    """A paged or quantised cache is never copied whole."""
    p = problem(t=3, s=9)

    class Pages:
        places, whole = p.keys.places, False

        def dense(self):
            raise AssertionError("read whole")

        def tiles(self, n):
            assert n == 4
            return p.keys.tiles(n)

    y = tiled(p.q, Pages(), p.rule, p.sight, tile=(2, 4))
    torch.testing.assert_close(y, plain(p.q, p.keys, p.rule, p.sight), rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_other_types_are_as_close_to_float64_as_their_digits_allow(dtype, atol):
    """Values near 1: float32 keeps 2^-24; 16-bit outputs are rounded once, at 2^-9 (bfloat16) and 2^-12 (float16)."""
    settings = {"bias": "alibi", "softcap": 5.0, "layout": "documents", "t": 9, "s": 9}
    exact, rough = problem(**settings), problem(**settings, dtype=dtype)
    exact.q, exact.keys = rough.q.double(), Keys(rough.keys.k.double(), rough.keys.v.double(), rough.keys.places)
    with torch.no_grad():
        want = plain(exact.q, exact.keys, exact.rule, exact.sight)
        got = tiled(rough.q, rough.keys, rough.rule, rough.sight, tile=(2, 4))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0, atol=atol)


def test_scores_far_below_the_largest_weigh_nothing_and_cost_no_precision():
    """Weights below e^-61 are dropped, in values and in gradients; the row's other weights do not notice."""
    p = problem(1, 4, 4, heads=1, n_kv=1, bias="none", dtype=torch.float32, sees=Sees("causal"))
    with torch.no_grad():
        p.q.mul_(40.0)
    for ours, theirs in zip(p.solve(tiled, tile=(2, 2)), p.solve(plain)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # float32, scores up to a few hundred


def test_a_row_far_down_in_the_scores_is_still_a_softmax():
    """A bias that puts every key of a row at the lowest float must give their mean, as the definition does."""
    p = problem(1, 3, 3, heads=1, n_kv=1, sees=Sees("all"), dtype=torch.float32)

    class Lowest(torch.nn.Module):
        def forward(self, q_at, k_at):
            return torch.full((1, 1, q_at.size(1), k_at.size(1)), torch.finfo(torch.float32).min)

    p.rule = p.rule.adding(Lowest())
    with torch.no_grad():
        y = tiled(p.q, p.keys, p.rule, p.sight, tile=(2, 2))
    torch.testing.assert_close(y[0, :, 0], p.keys.v[0, :, 0].mean(0).expand(3, -1), rtol=0, atol=1e-6)  # float32


def test_a_learned_bias_learns_the_tensors_of_the_forward_pass():
    """Changing the module between forward and backward (as a functional call does) must not change the gradient."""
    p = problem(bias="t5")
    table = p.rule.bias.table
    y = torch.func.functional_call(Wrapped(p), {"bias.table": table * 2})
    y.sum().backward()
    got, table.grad = table.grad, None
    q = problem(bias="t5")
    q.rule.bias.table.data.mul_(2)
    plain(q.q, q.keys, q.rule, q.sight).sum().backward()
    torch.testing.assert_close(got, 2 * q.rule.bias.table.grad, rtol=0, atol=1e-10)  # float64


class Wrapped(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p, self.bias = p, p.rule.bias

    def forward(self):
        return tiled(self.p.q, self.p.keys, self.p.rule, self.p.sight, tile=(2, 2))


def test_autocast_does_not_reach_into_the_tiles():
    p = problem(dtype=torch.float32, bias="alibi")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = tiled(p.q, p.keys, p.rule, p.sight)
    assert torch.equal(y, tiled(p.q, p.keys, p.rule, p.sight))


def test_a_second_derivative_is_refused():
    p = problem()
    y = tiled(p.q, p.keys, p.rule, p.sight)
    with pytest.raises(OnehopError, match=r"no second derivative\. Use kernel='plain'"):
        torch.autograd.grad(y.sum(), p.q, create_graph=True)


@pytest.mark.parametrize("layout", ["run", "padded"])
def test_sinks_are_left_as_they_are_and_one_of_minus_infinity_is_none(layout):
    p = problem(t=1, layout=layout, sinks=True)
    with torch.no_grad():
        p.rule.sinks[1] = -torch.inf
        before = p.rule.sinks.clone()
        got, want = tiled(p.q, p.keys, p.rule, p.sight, tile=(1, 2)), plain(p.q, p.keys, p.rule, p.sight)
    assert torch.equal(p.rule.sinks, before)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)  # float64


def test_a_learned_table_of_16_bits_gets_a_gradient_of_its_own_type():
    p, exact = problem(bias="t5", dtype=torch.bfloat16), problem(bias="t5")
    (got,) = torch.autograd.grad(tiled(p.q, p.keys, p.rule, p.sight, tile=(2, 2)).sum(), p.rule.bias.table)
    (want,) = torch.autograd.grad(plain(exact.q, exact.keys, exact.rule, exact.sight).sum(), exact.rule.bias.table)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0, atol=5e-2)  # sums of some ten numbers near 1 in bfloat16


def test_no_keys_at_all_give_zeros():
    p = problem(t=3, s=0)
    with torch.no_grad():
        assert torch.equal(tiled(p.q, p.keys, p.rule, p.sight), torch.zeros(2, 3, 4, 3, dtype=torch.float64))


def test_a_rule_that_changes_scores_freely_has_no_tiled_form():
    assert "plain kernel only" in why_not_tiled(ScoreRule(1.0, change=torch.nn.Identity()))
    assert why_not_tiled(ScoreRule(1.0, softcap=1.0)) is None
