"""PyTorch's kernels give the numbers of the definition wherever they are allowed to, and say no elsewhere."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch import nn

from onehop.parts.dropout import DropKey
from onehop.parts.keys import Keys
from onehop.parts.score_flex import flex, why_not_flex
from onehop.parts.score_fused import fused, why_not_fused
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees
from tests.score_cases import problem, problems


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.filter_too_much])
@given(problem=problems)
def test_the_fused_kernel_gives_the_values_and_gradients_of_the_definition(problem):
    """Over T ≠ S, groups of heads, rows without keys, documents, windows, prefixes, biases and other value widths."""
    assume(why_not_fused(problem.q, problem.rule, problem.sight) is None)
    for ours, theirs in zip(problem.solve(fused), problem.solve(plain)):
        # float64, sums in another order: 1e-10 is a million of its steps at 1.0, and all numbers here are below 100
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("options", [{}, {"bias": "alibi"}, {"layout": "padded"}, {"sees": Sees("all")}])
def test_other_types_are_as_close_to_the_definition_as_their_digits_allow(dtype, atol, options):
    """The same inputs in both kernels; outputs near 1, rounded to the type, and sums in another order."""
    p = problem(t=6, s=6, d=4, dv=4, dtype=dtype, **options)
    torch.testing.assert_close(
        fused(p.q, p.keys, p.rule, p.sight), plain(p.q, p.keys, p.rule, p.sight), rtol=0, atol=atol
    )


@pytest.mark.parametrize("options", [{}, {"bias": "alibi"}, {"layout": "padded"}, {"sees": Sees("all")}])
def test_one_query_of_16_bits_in_groups_of_one_is_the_definition(options):
    """Its row is taken twice; outputs near 1, rounded to the type."""
    p = problem(t=1, s=9, heads=3, n_kv=3, d=4, dv=4, dtype=torch.bfloat16, **options)
    y = fused(p.q, p.keys, p.rule, p.sight)
    assert y.shape == (2, 1, 3, 4)
    torch.testing.assert_close(y, plain(p.q, p.keys, p.rule, p.sight), rtol=0, atol=2e-2)


def test_a_bias_stays_in_float32_beside_16_bit_queries():
    """In bfloat16 a bias of -1001 would become -1000, and e^1 of weight would be lost."""

    class Far(nn.Module):
        def forward(self, q_at, k_at):
            return -1000.0 - k_at.float().view(1, 1, 1, -1)

    p = problem(1, 1, 3, heads=1, n_kv=1, sees=Sees("all"), dtype=torch.bfloat16)
    p.rule = ScoreRule(1.0, bias=Far())
    y = fused(torch.zeros_like(p.q), p.keys, p.rule, p.sight)
    w = torch.softmax(-torch.arange(3.0), 0)
    want = (w.view(3, 1) * p.keys.v[0, :, 0].float()).sum(0)
    torch.testing.assert_close(y[0, 0, 0].float(), want, rtol=0, atol=1e-2)  # outputs near 1 rounded to bfloat16


def test_what_it_cannot_express_is_said():
    p = problem()
    say = {
        "known to the plain kernel only": ScoreRule(1.0, change=nn.Identity()),
        "no softcap": ScoreRule(1.0, softcap=2.0),
        "no sinks": ScoreRule(1.0, sinks=torch.zeros(4)),
        "its own dropout": ScoreRule(1.0, dropout=0.1, drop_key=DropKey.of(1)),
        "no gradient to a learned bias": problem(bias="t5").rule,
    }
    for text, rule in say.items():
        assert text in why_not_fused(p.q, rule, p.sight)
    with torch.no_grad():
        assert why_not_fused(p.q, say["no gradient to a learned bias"], p.sight) is None
    alibi = problem(bias="alibi").rule
    assert why_not_fused(p.q, alibi, p.sight) is None
    assert why_not_fused(p.q.bfloat16(), alibi, p.sight) is None
    elsewhere = torch.empty(2, 5, 4, 3, dtype=torch.bfloat16, device="meta")
    assert "rounds a bias to 16 bits" in why_not_fused(elsewhere, alibi, p.sight)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("layout", ["run", "padded", "documents"])
@pytest.mark.parametrize("sees", [Sees("causal"), Sees("all", window=3), Sees("prefix"), Sees("causal", window=2)])
@pytest.mark.parametrize("options", [{}, {"softcap": 1.5, "sinks": True}], ids=["bare", "cap and sinks"])
def test_the_call_to_flex_attention_says_the_same_rule(layout, sees, options):
    """Run without generating a kernel, which any device can; only the forward pass exists there."""
    p = problem(2, 6, 6, d=4, dv=4, layout=layout, sees=sees, dtype=torch.float32, **options)
    assert why_not_flex(p.rule, p.sight) is None
    with torch.no_grad():
        keys = Keys(p.keys.k.detach(), p.keys.v.detach(), p.keys.places)
        got, want = flex(p.q.detach(), keys, p.rule, p.sight, compiled=False), plain(p.q, keys, p.rule, p.sight)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)  # float32, sums in another order


@pytest.mark.skipif(not torch.cuda.is_available(), reason="generated kernels need a GPU")
@pytest.mark.parametrize("options", [{"layout": "documents"}, {"softcap": 1.5, "sinks": True}, {"bias": "alibi"}])
def test_on_a_gpu_the_fused_kernels_give_the_definition(options):
    p = problem(2, 130, 130, d=16, dv=16, dtype=torch.float32, **options)
    p.rule = p.rule if p.rule.sinks is None else ScoreRule(0.25, softcap=1.5, sinks=p.rule.sinks.detach().cuda())
    p.q = p.q.detach().cuda().requires_grad_()
    at = p.keys.places
    for places in (at, p.sight.q):
        object.__setattr__(places, "at", places.at.cuda())
        object.__setattr__(places, "doc", None if places.doc is None else places.doc.cuda())
    p.keys = Keys(p.keys.k.detach().cuda().requires_grad_(), p.keys.v.detach().cuda().requires_grad_(), at)
    leaves = (p.q, p.keys.k, p.keys.v)
    got, want = fused(p.q, p.keys, p.rule, p.sight), plain(p.q, p.keys, p.rule, p.sight)
    # generated kernels may multiply in TensorFloat-32, which keeps 10 bits
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3)
    for ours, theirs in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-2)
