"""Attention as a plain function: masks of one's own, how queries and keys are aligned, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import ConfigError
from onehop.parts.attend import attend
from onehop.parts.bias import Alibi
from onehop.parts.score_rule import ScoreRule
from tests.score_cases import rand

KERNELS = ["plain", "tiled", "fused", "auto"]


def qkv(b=2, t=5, s=7, *, heads=4, n_kv=2, d=3, dv=3, seed=0):
    return rand(b, t, heads, d, seed=seed), rand(b, s, n_kv, d, seed=seed + 1), rand(b, s, n_kv, dv, seed=seed + 2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_fewer_queries_than_keys_stand_at_the_end(kernel):
    """Two queries over five keys see four and five of them; anchored at the top left they would see one and two."""
    q = [[0.3743541, -0.4786820, -0.4819528, -0.2666403], [0.5235104, -0.2609066, -0.2917506, -0.8457043]]
    k = [
        [-0.0200311, -1.2925608, 0.7848948, 1.2064328],
        [-1.1601815, 1.2904250, 0.6080683, 0.0040274],
        [1.4659405, -0.2589258, -0.9294225, 0.6304293],
        [-0.2921431, -0.3976342, 1.4945588, -1.1943159],
        [-0.6420924, 0.3680002, -1.1574629, 1.3295263],
    ]
    v = [
        [0.0833366, 0.3727879],
        [-0.4838745, 0.1373422],
        [-0.0618555, -0.4175553],
        [0.7200371, 0.5706998],
        [-0.237048, -0.9577818],
    ]
    q, k, v = (torch.tensor(x).view(1, len(x), 1, -1) for x in (q, k, v))
    y = attend(q, k, v, causal=True, kernel=kernel)
    want = torch.tensor([[0.0882231, 0.0612131], [0.1146433, -0.0049259]])
    torch.testing.assert_close(y[0, :, 0], want, rtol=0, atol=1e-6)  # the numbers have 7 digits


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_causal_queries_than_keys_leave_the_first_with_nothing(kernel):
    q, k, v = qkv(t=4, s=2)
    y = attend(q, k, v, causal=True, kernel=kernel)
    assert not y[:, :2].any()
    torch.testing.assert_close(y[:, 2:], attend(q[:, 2:], k, v, causal=True, kernel="plain"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_padded_source_tokens_count_as_absent(kernel):
    """Cross-attention over 5 source tokens of which 3 are real: the pads may hold anything."""
    q, k, v = qkv(t=3, s=5)
    mask = torch.tensor([True, True, True, False, False])
    want = attend(q, k[:, :3], v[:, :3], kernel="plain")
    k, v = k.detach().clone(), v.detach().clone()
    k[:, 3:], v[:, 3:] = 1e4, 1e4
    y = attend(q, k, v, mask, kernel=kernel)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-12)  # float64
    one_by_one = torch.cat([attend(q[:, i : i + 1], k, v, mask, kernel=kernel) for i in range(3)], dim=1)
    torch.testing.assert_close(one_by_one, want, rtol=0, atol=1e-12)


SHAPES = [(7,), (5, 7), (1, 7), (5, 1), (4, 5, 7), (4, 1, 1), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1, 1, 1)]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from(SHAPES),
    kernel=st.sampled_from(KERNELS),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 50),
    additive=st.booleans(),
)
def test_a_mask_of_any_shape_narrows_what_is_seen(shape, kernel, causal, window, seed, additive):
    """True may look; added numbers change scores, and -inf hides. Against the mask spread out and filled in by hand."""
    q, k, v = qkv(seed=seed)
    g = torch.Generator().manual_seed(seed)
    sees = torch.rand(shape, generator=g) > 0.3
    mask = torch.randn(shape, generator=g, dtype=torch.float64).masked_fill(~sees, -torch.inf) if additive else sees
    y = attend(q, k, v, mask, causal=causal, window=window, kernel=kernel)
    i, j = torch.arange(2, 7).unsqueeze(1), torch.arange(7)
    rest = torch.ones(5, 7, dtype=torch.bool)
    if causal:
        rest &= j <= i
    if window is not None:
        rest &= (i - j < window) & (j - i < window)
    scores = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(2, dim=2)) * 3**-0.5
    scores = (scores + mask if additive else scores).masked_fill(~(sees & rest), -torch.inf)
    w = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    torch.testing.assert_close(y, torch.einsum("bhts,bshd->bthd", w, v.repeat_interleave(2, dim=2)), rtol=0, atol=1e-10)


def test_masks_run_through_tiles_by_parts():
    """Large enough for several tiles, whose parts of the mask must be the right ones."""
    q, k, v = qkv(1, 300, 520, heads=2, n_kv=1)
    mask = torch.rand(2, 300, 520, generator=torch.Generator().manual_seed(1)) > 0.5
    added = torch.zeros(300, 520, dtype=torch.float64).masked_fill(~mask[0], -torch.inf)
    for m in (mask, added):
        got, want = (attend(q, k, v, m, causal=True, kernel=kernel) for kernel in ("tiled", "plain"))
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_learned_mask_gets_its_gradient_from_every_kernel(kernel):
    q, k, v = qkv()
    mask = rand(5, 7, seed=9)
    (got,) = torch.autograd.grad(attend(q, k, v, mask, kernel=kernel).sum(), mask)
    (want,) = torch.autograd.grad(attend(q, k, v, mask, kernel="plain").sum(), mask)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)  # float64
    assert got.abs().max() > 1e-3


@pytest.mark.parametrize("kernel", KERNELS)
def test_options_mean_what_a_rule_of_the_same_parts_means(kernel):
    q, k, v = qkv()
    sinks, bias = rand(4, seed=5), Alibi(4)
    options = {"scale": 0.3, "softcap": 2.0, "bias": bias, "sinks": sinks}
    whole = ScoreRule(0.3, softcap=2.0, bias=bias, sinks=sinks)
    one, other = attend(q, k, v, kernel=kernel, **options), attend(q, k, v, rule=whole, kernel="plain")
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)  # float64


@pytest.mark.parametrize("t", [5, 200])  # few tokens go another way
@pytest.mark.parametrize("scale", [0.0, -0.3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_scale_need_not_be_above_zero(kernel, scale, t):
    """Of 0 it is the mean of what is seen; PyTorch's kernel would multiply its triangle's -inf by it."""
    q, k, v = (x.requires_grad_() for x in qkv(t=t, s=t))
    y = attend(q, k, v, causal=True, scale=scale, kernel=kernel)
    want = attend(q, k, v, causal=True, scale=scale, kernel="plain")
    torch.testing.assert_close(y, want, rtol=0, atol=1e-10)  # float64
    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (y, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    if scale == 0.0:
        mean = v.cumsum(1) / torch.arange(1, t + 1).view(1, -1, 1, 1)
        torch.testing.assert_close(y, mean.repeat_interleave(2, 2), rtol=0, atol=1e-10)


def test_a_mask_is_added_beside_a_bias():
    q, k, v = qkv(t=7)
    mask, alibi = rand(7, 7, seed=3).detach(), Alibi(4)
    at = torch.arange(7).unsqueeze(0)
    both = attend(q, k, v, mask, bias=alibi, kernel="tiled")
    torch.testing.assert_close(both, attend(q, k, v, mask + alibi(at, at)[0], kernel="plain"), rtol=0, atol=1e-10)


def test_a_distance_counts_from_the_last_token_on_both_sides():
    """ALiBi over a cache: the one new query stands beside the last key, so that the last key costs nothing."""
    q, k, v = qkv(1, 6, 6)
    whole = attend(q, k, v, causal=True, bias=Alibi(4))
    torch.testing.assert_close(attend(q[:, 5:], k, v, causal=True, bias=Alibi(4)), whole[:, 5:], rtol=0, atol=1e-10)


Q, K, V = (x.detach() for x in qkv())


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((Q[0], K, V), {}, r"q \(5, 4, 3\).*each needs 4 dims"),
        ((Q, K[:1], V), {}, "batches must agree"),
        ((Q, K[:, :6], V), {}, "k and v must agree in tokens and heads"),
        ((Q, K[..., :2], V), {}, r"same width \(last dim\)"),
        ((Q[:, :, :3], K, V), {}, "2 key heads cannot share 3 query heads: the first must divide the second"),
        ((Q, K.float(), V), {}, "convert them to one type"),
        ((Q, K, V, torch.ones(6, dtype=torch.bool)), {}, r"shape \(6,\) does not broadcast to .* = \(2, 4, 5, 7\)"),
        ((Q, K, V, torch.ones(3, 2, 4, 5, 7)), {}, r"shape \(3, 2, 4, 5, 7\) does not broadcast"),
        ((Q, K, V, torch.ones(5, 7, dtype=torch.int64)), {}, "mask of torch.int64: give booleans"),
        ((Q.long(), K.long(), V.long()), {}, "q is torch.int64: convert q, k and v"),
        ((Q[..., :0], K[..., :0], V), {}, "a width of 0 leaves nothing to compare"),
        ((Q, K, V), {"window": 0}, "window=0 is no number of tokens, the own one included"),
        ((Q, K, V), {"window": 1.5}, "window=1.5 is no number of tokens"),
        ((Q, K, V), {"softcap": 0.0}, "softcap=0.0 must be above 0"),
        ((Q, K, V), {"softcap": math.inf}, "softcap=inf must be above 0 and finite"),
        ((Q, K, V), {"scale": math.nan}, "scale=nan must be finite"),
        ((Q, K, V), {"bias": torch.zeros(5, 7)}, "bias is a tensor.*Give numbers to add as mask"),
        ((Q, K, V), {"bias": lambda q_at, k_at: torch.zeros(1, 4, 5, 7)}, "bias is a function, and has to be a module"),
        ((Q.numpy(), K, V), {}, r"q is a ndarray, and has to be a tensor\. Use torch\.as_tensor\."),
        ((Q, K, V, [[True] * 7] * 5), {}, "mask is a list, and has to be a tensor"),
        ((Q, K, V), {"sinks": [0.0] * 4}, "sinks is a list, and has to be a tensor"),
        ((Q, K, V), {"softcap": "1"}, "softcap is a str, and has to be a number"),
        ((Q, K, V), {"scale": "1"}, "scale is a str, and has to be a number"),
        ((Q, K, V), {"rule": "alibi"}, "rule is a str, and has to be a ScoreRule"),
        (tuple(x.to(torch.float8_e4m3fn) for x in (Q, K, V)), {}, "q is torch.float8_e4m3fn: convert q, k and v"),
        ((Q, K, V), {"sinks": torch.zeros(3)}, r"sinks \(3,\) need one score for each of the 4 query heads"),
        ((Q, K, V), {"scale": 1.0, "rule": ScoreRule(1.0)}, "scale given beside a rule"),
        ((Q, K, V), {"kernel": "fuse"}, "Did you mean fused"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(args, options, text):
    with pytest.raises(ConfigError, match=text) as refusal:
        attend(*args, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_empty_side_gives_an_empty_or_a_zero_answer(kernel):
    q, k, v = qkv()
    with torch.no_grad():
        assert attend(q[:, :0], k, v, kernel=kernel).shape == (2, 0, 4, 3)
        assert torch.equal(attend(q, k[:, :0], v[:, :0], kernel=kernel), torch.zeros(2, 5, 4, 3, dtype=torch.float64))
        assert attend(q[:0], k[:0], v[:0], window=2, softcap=1.0, kernel=kernel).shape == (0, 5, 4, 3)
