"""Position biases depend on distances alone, by the published slopes and buckets."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.config import AlibiConfig, AttentionConfig
from onehop.config.position import T5Config
from onehop.parts.bias import Alibi, RoundedAlibi, T5Bias, alibi_slopes, t5_bucket
from onehop.parts.position import POSITIONS

R = 2**-0.5
SLOPES = {  # the published tables
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    5: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2**-h for h in range(1, 9)],
    12: [2**-h for h in range(1, 9)] + [R, R / 2, R / 4, R / 8],
    20: [2 ** (-h / 2) for h in range(1, 17)] + [2 ** (-h / 4) for h in (1, 3, 5, 7)],
    40: [2 ** (-h / 4) for h in range(1, 33)] + [2 ** (-h / 8) for h in range(1, 16, 2)],
}

# first distance, last distance, bucket; distance = key - query
TABLES = {
    (True, 32, 128): [
        (-140, -91, 15), (-90, -64, 14), (-63, -46, 13), (-45, -32, 12), (-31, -23, 11), (-22, -16, 10),
        (-15, -12, 9), (-11, -8, 8), (-7, -7, 7), (-6, -6, 6), (-5, -5, 5), (-4, -4, 4), (-3, -3, 3), (-2, -2, 2),
        (-1, -1, 1), (0, 0, 0), (1, 1, 17), (2, 2, 18), (3, 3, 19), (4, 4, 20), (5, 5, 21), (6, 6, 22), (7, 7, 23),
        (8, 11, 24), (12, 15, 25), (16, 22, 26), (23, 31, 27), (32, 45, 28), (46, 63, 29), (64, 90, 30),
        (91, 140, 31),
    ],
    (False, 32, 128): [
        (-140, -113, 31), (-112, -99, 30), (-98, -87, 29), (-86, -77, 28), (-76, -67, 27), (-66, -59, 26),
        (-58, -52, 25), (-51, -46, 24), (-45, -40, 23), (-39, -35, 22), (-34, -31, 21), (-30, -27, 20),
        (-26, -24, 19), (-23, -21, 18), (-20, -19, 17), (-18, -16, 16), (-15, -15, 15), (-9, -9, 9), (-1, -1, 1),
        (0, 140, 0),
    ],
    (True, 8, 20): [
        (-140, -7, 3), (-6, -2, 2), (-1, -1, 1), (0, 0, 0), (1, 1, 5), (2, 6, 6), (7, 140, 7),
    ],
    (False, 8, 20): [
        (-140, -14, 7), (-13, -9, 6), (-8, -6, 5), (-5, -4, 4), (-3, -3, 3), (-2, -2, 2), (-1, -1, 1), (0, 140, 0),
    ],
    (False, 16, 64): [
        (-140, -50, 15), (-49, -39, 14), (-38, -30, 13), (-29, -23, 12), (-22, -18, 11), (-17, -14, 10),
        (-13, -11, 9), (-10, -8, 8), (-7, -7, 7), (-4, -4, 4), (-1, -1, 1), (0, 140, 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("n_heads", SLOPES)
def test_slopes_are_the_published_ones_for_any_head_count(n_heads):
    assert alibi_slopes(n_heads) == pytest.approx(SLOPES[n_heads], rel=1e-12)


def test_another_largest_exponent_stretches_the_slopes():
    assert alibi_slopes(4, 16.0) == [2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16]
    assert alibi_slopes(3, 4.0) == [2.0**-2, 2.0**-4, 2.0**-1]


@pytest.mark.parametrize("largest", [8.0, 6.0])
def test_slopes_are_every_second_of_the_next_higher_power_then_the_others(largest):
    """How MPT's release puts it: the same numbers in the same order."""
    for n_heads in range(1, 50):
        n = 2 ** math.ceil(math.log2(n_heads))
        slopes = [2.0 ** (-largest * h / n) for h in range(1, n + 1)]
        want = slopes if n == n_heads else (slopes[1::2] + slopes[::2])[:n_heads]
        assert alibi_slopes(n_heads, largest) == pytest.approx(want, rel=1e-12)


def test_a_rounded_bias_is_that_of_the_keys_in_bfloat16_but_for_what_all_keys_share():
    """As Falcon's release adds it: slope · j for the key at j, rounded; 12 heads have slopes that bfloat16 rounds."""
    at = torch.arange(290, 310)[None]  # bfloat16 rounds such positions too
    slopes = torch.tensor(alibi_slopes(12))
    theirs = slopes.bfloat16().view(12, 1) * at  # (12, S), by position alone
    ours = RoundedAlibi(12, scale=0.5)(at, at)[0]  # (12, T, S)
    causal = torch.ones(20, 20).tril().log()
    want = (0.5 * theirs.float().unsqueeze(1) + causal).softmax(-1)
    # float32 softmax of scores to 150
    torch.testing.assert_close((ours + causal).softmax(-1), want, rtol=0, atol=1e-5)
    exact = (0.5 * Alibi(12)(at, at)[0] + causal).softmax(-1)
    assert (exact - want).abs().max() > 0.01  # or the rounding would not have been seen
    assert torch.equal(ours, ours.transpose(1, 2))  # both directions, as without rounding


@pytest.mark.parametrize(
    ("own", "scale"), [({}, 1.0), ({"scaled": True}, 0.25), ({"scaled": True, "rounded": True}, 0.25)]
)
def test_a_bias_added_before_the_scores_are_scaled_is_scaled_too(own, scale):
    attention = AttentionConfig(n_heads=2, n_kv_heads=2, d_head=16)
    at = torch.arange(9)[None]  # so few positions at powers of two are exact in bfloat16
    bias = POSITIONS.get("alibi")(AlibiConfig(**own), attention)
    assert torch.equal(bias(at, at), scale * Alibi(2)(at, at))
    given = AttentionConfig(n_heads=2, n_kv_heads=2, d_head=16, scale=3.0)
    bias = POSITIONS.get("alibi")(AlibiConfig(**own), given)
    assert torch.equal(bias(at, at), (3.0 if own else 1.0) * Alibi(2)(at, at))


def test_an_alibi_bias_is_minus_slope_times_distance_in_both_directions():
    bias = Alibi(2)(torch.tensor([[5]]), torch.arange(8).unsqueeze(0))  # (1, 2, 1, 8)
    distance = [5, 4, 3, 2, 1, 0, 1, 2]
    assert bias.shape == (1, 2, 1, 8)
    assert bias[0, :, 0].tolist() == [[-d / 16 for d in distance], [-d / 256 for d in distance]]


def test_alibi_weights_of_a_cached_query():
    """One query at position 5 over six keys, all products zero: the softmax of the bias alone."""
    weights = Alibi(3)(torch.tensor([[5]]), torch.arange(6).unsqueeze(0)).softmax(-1)[0, :, 0]  # (3, 6)
    want = [
        [0.1417487382, 0.1508907464, 0.1606223634, 0.1709816158, 0.1820089826, 0.1937475535],
        [0.1650433113, 0.1656892726, 0.1663377621, 0.1669887897, 0.1676423653, 0.1682984990],
        [0.0815769045, 0.1047468188, 0.1344975776, 0.1726983081, 0.2217490170, 0.2847313740],
    ]
    # float32 softmax of six values
    torch.testing.assert_close(weights, torch.tensor(want), rtol=0, atol=1e-6)


def test_alibi_stays_exact_in_a_bf16_model_at_long_distances():
    alibi = Alibi(12).bfloat16()
    bias = alibi(torch.tensor([[131071]]), torch.tensor([[0, 1, 131071]]))
    assert bias.dtype == torch.float32
    slopes = torch.tensor(alibi_slopes(12))
    assert torch.equal(bias[0, :, 0], -slopes.unsqueeze(1) * torch.tensor([131071.0, 131070.0, 0.0]))


@pytest.mark.parametrize("kind", TABLES, ids=str)
def test_buckets_are_the_published_ones(kind):
    bidirectional, n_buckets, max_distance = kind
    for first, last, bucket in TABLES[kind]:
        for d in range(first, last + 1):
            got = t5_bucket(d, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
            assert got == bucket, d


def test_buckets_of_a_cached_query_count_from_its_absolute_position():
    bias = T5Bias(T5Config(n_buckets=8, max_distance=20), 1, bidirectional=False)
    with torch.no_grad():
        bias.table.copy_(torch.arange(8.0).unsqueeze(1))
    assert bias(torch.tensor([[6]]), torch.arange(7).unsqueeze(0)).flatten().tolist() == [5, 4, 4, 3, 2, 1, 0]


@settings(deadline=None, max_examples=60)
@given(
    side=st.integers(2, 40),
    beyond=st.integers(1, 200),
    bidirectional=st.booleans(),
    distance=st.integers(-3000, 3000),
)
def test_buckets_equal_the_logarithm_where_it_is_not_on_an_edge(side, beyond, bidirectional, distance):
    """The release's formula in float64; on the edge between two buckets its rounding decides, so these are left out."""
    exact, max_distance = side // 2, side // 2 + beyond
    n = abs(distance) if bidirectional else max(-distance, 0)
    got = t5_bucket(
        distance, n_buckets=2 * side if bidirectional else side, max_distance=max_distance, bidirectional=bidirectional
    )
    if n < exact:
        want = n
    else:
        place = math.log(n / exact) / math.log(max_distance / exact) * (side - exact)
        if abs(place - round(place)) < 1e-9:
            return
        want = min(exact + int(place), side - 1)
    assert got == want + (side if bidirectional and distance > 0 else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_t5_bias_is_the_row_of_each_distance(dtype, bidirectional):
    cfg = T5Config(n_buckets=8, max_distance=20)
    part = T5Bias(cfg, 3, bidirectional=bidirectional).to(dtype)
    q_at, k_at = torch.tensor([[4, 300], [0, -1]]), torch.tensor([[0, 4, 290, -1], [1, 2, 3, 4]])
    got = part(q_at, k_at)  # (2, 3, 2, 4)
    assert got.shape == (2, 3, 2, 4)
    assert got.dtype == dtype
    for b in range(2):
        for i in range(2):
            for j in range(4):
                d = int(k_at[b, j] - q_at[b, i])
                row = part.table[t5_bucket(d, n_buckets=8, max_distance=20, bidirectional=bidirectional)]
                assert torch.equal(got[b, :, i, j], row)


def test_the_gradient_of_a_t5_table_counts_how_often_each_bucket_is_used():
    part = T5Bias(T5Config(n_buckets=8, max_distance=20), 2, bidirectional=True)
    at = torch.arange(10).unsqueeze(0)
    part(at, at).sum().backward()
    used = [t5_bucket(j - i, n_buckets=8, max_distance=20, bidirectional=True) for i in range(10) for j in range(10)]
    assert part.table.grad[:, 0].tolist() == [used.count(b) for b in range(8)]


@pytest.mark.parametrize("make", [lambda: Alibi(3), lambda: T5Bias(T5Config(), 3, bidirectional=True)])
def test_a_tile_of_a_bias_is_a_cut_of_the_whole(make):
    part, at = make(), torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(2, 20)
    whole = part(at, at)
    assert torch.equal(part(at[:, 3:9], at[:, 11:]), whole[:, :, 3:9, 11:])


@pytest.mark.parametrize("make", [lambda: Alibi(3), lambda: T5Bias(T5Config(), 3, bidirectional=True)])
def test_a_bias_does_not_change_under_a_shift_of_all_positions(make):
    part, at = make(), torch.arange(20).unsqueeze(0)
    assert torch.equal(part(at, at), part(at + 1000, at + 1000))
