"""Attention over short texts that is trained on a CPU: the definition's outputs and gradients, its weights kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.model.recompute import recompute
from onehop.parts import score_fused, score_short
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score_fused import fused
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_short import SHORT, short, wants_short
from onehop.parts.sight import Sees, Sight
from tests.small_models import VOCABULARY, decoder, small_model


def definition(q, k, v, mask, causal, scale):
    """In float64; an empty row is zero."""
    group = q.size(2) // k.size(2)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bthd,bshd->bhts", q, k) * scale
    if causal:
        mask = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1).nan_to_num(0.0), v)


def drawn(generator, b, t, s, heads, kv_heads, width):
    shapes = ((b, t, heads, width), (b, s, kv_heads, width), (b, s, kv_heads, width), (b, t, heads, width))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    st.sampled_from(["causal", "all", "a mask", "a mask for each row", "a mask for each head"]), st.integers(0, 99),
)  # fmt: skip
def test_outputs_and_gradients_are_those_of_the_definition(b, t, s, heads, sight, seed):
    generator = torch.Generator().manual_seed(seed)
    s = t if sight == "causal" else s
    *values, weight = drawn(generator, b, t, s, *heads, 8)
    mask = None
    if "mask" in sight:
        shape = (b if "row" in sight else 1, heads[0] if "head" in sight else 1, t, s)
        mask = torch.rand(shape, generator=generator) > 0.5  # some rows see nothing
    found = []
    for way, dtype in ((definition, torch.float64), (short, torch.float32)):
        own = [x.to(dtype).requires_grad_() for x in values]
        options = (mask, sight == "causal", 0.3) if way is definition else (mask,)
        y = way(*own, *options, **({} if way is definition else {"causal": sight == "causal", "scale": 0.3}))
        found.append([y.detach(), *torch.autograd.grad(y, own, weight.to(dtype))])
    for exact, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)  # sums of up to 120 float32 products
    if mask is not None:
        empty = ~mask.any(-1).expand(b, heads[0], t).transpose(1, 2)  # (B, T, H)
        assert not found[1][0][empty].any()
        assert not found[1][1][empty].any()


def test_16_bit_inputs_are_computed_in_float32_also_under_autocast():
    *values, weight = drawn(torch.Generator().manual_seed(0), 2, 30, 30, 4, 2, 16)
    values, weight = [x.bfloat16() for x in values], weight.bfloat16()
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        own = [x.to(dtype).requires_grad_() for x in values]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = short(*own, None, causal=True, scale=0.25)
            assert y.dtype == dtype
        found.append([y, *torch.autograd.grad(y, own, weight.to(dtype))])
    for wide, half in zip(*found, strict=True):
        assert torch.equal(half, wide.bfloat16())  # rounded once, at the end


def test_it_is_taken_for_short_texts_that_learn_and_for_masks_of_booleans():
    q, k, v, _ = drawn(torch.Generator().manual_seed(0), 8, 64, 64, 8, 8, 32)  # WORK and no more
    assert not wants_short(q, k, v, None)  # nothing to learn
    q.requires_grad_()
    assert wants_short(q, k, v, None)
    assert wants_short(q, k, v, torch.ones(1, 1, 64, 64, dtype=torch.bool))
    assert not wants_short(q, k, v, torch.zeros(1, 1, 64, 64))  # a bias
    assert not wants_short(*(x.double() for x in (q, k, v)), None)
    assert not wants_short(*(x.to("meta") for x in (q, k, v)), None)
    assert not wants_short(q, k[:, :0], v[:, :0], None)
    assert not wants_short(q[:0], k[:0], v[:0], None)
    long = torch.zeros(8, SHORT // 64 + 1, 8, 32)
    assert not wants_short(q, long, long, None)


def test_little_work_is_left_to_pytorch_except_in_16_bits_with_wide_heads():
    for dtype, width, enough in ((torch.float32, 64, 32), (torch.bfloat16, 32, 64), (torch.bfloat16, 64, 1)):
        for heads in (enough, enough - 1):
            q = torch.zeros(1, 64, heads, width, dtype=dtype, requires_grad=True)
            assert wants_short(q, q, q, None) == (heads == enough)


def test_the_fused_kernel_hands_over_to_it(monkeypatch):
    q, k, v, _ = drawn(torch.Generator().manual_seed(0), 8, 64, 64, 8, 8, 32)
    q.requires_grad_()
    asked = []
    monkeypatch.setattr(score_fused, "short", lambda *args, **named: asked.append(1) or short(*args, **named))
    places = Places.run(0, 64)
    y = fused(q, Keys(k, v, places), ScoreRule(0.2), Sight(Sees("causal"), places, places))
    want = plain(q, Keys(k, v, places), ScoreRule(0.2), Sight(Sees("causal"), places, places))
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-6)  # a few float32 roundings at 1
    assert asked


def test_only_the_gradients_that_are_asked_for_are_made():
    values = drawn(torch.Generator().manual_seed(0), 1, 5, 5, 2, 2, 4)[:3]
    whole = torch.autograd.grad(
        short(*(x.requires_grad_() for x in values), None, causal=True, scale=0.5).sum(), values
    )
    for wanted in range(3):
        own = [x.detach().requires_grad_(i == wanted) for i, x in enumerate(values)]
        y = short(*own, None, causal=True, scale=0.5)
        y.sum().backward()
        assert torch.equal(own[wanted].grad, whole[wanted])
        assert [x.grad is None for x in own] == [i != wanted for i in range(3)]


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()])
def test_in_a_graph_it_is_the_same(mask):
    *values, weight = drawn(torch.Generator().manual_seed(0), 2, 6, 6, 2, 1, 4)
    found = []
    torch.compiler.reset()
    for way in (short, torch.compile(short, backend="aot_eager", fullgraph=True)):
        own = [x.clone().requires_grad_() for x in values]
        y = way(*own, mask, causal=mask is None, scale=0.5)
        found.append([y, *torch.autograd.grad(y, own, weight)])
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager, rtol=1e-6, atol=1e-6)  # the same operations; a few roundings at 1


@pytest.mark.parametrize("way", ["block", "selective"])
@pytest.mark.parametrize("window", [None, 5])
def test_computed_again_its_gradients_are_the_same(way, window, monkeypatch):
    """Selective recomputation keeps the scores, and refuses what was changed in place since."""
    monkeypatch.setattr(score_short, "WORK", 0)
    model = small_model(decoder(attention={"window": window}), dtype=torch.float32)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))
    found = []
    for how in ("none", way):
        recompute(model, how)
        found.append(torch.autograd.grad(model(tokens).square().sum(), list(model.parameters())))
    for once, again in zip(*found, strict=True):
        torch.testing.assert_close(again, once, rtol=1e-6, atol=1e-6 * float(once.abs().max()))  # the same operations
