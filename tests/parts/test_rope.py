"""Rotation: scores depend on distances alone, lengths are kept, and no dtype of the model reaches the angles."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onehop.config import AttentionConfig, RopeConfig
from onehop.config.position import DynamicScaling, LinearScaling, LongRopeScaling, NTKScaling, YarnScaling
from onehop.parts.attention import GroupedQueryAttention
from onehop.parts.cache import Cache
from onehop.parts.places import Places
from onehop.parts.rope import Rope, in_graphs
from onehop.parts.step import Step

F64 = torch.float64
LONGROPE = LongRopeScaling(short_factor=(1.0, 1.5), long_factor=(2.0, 5.0), original_max_len=4)


def _x(*shape, dtype=F64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def _turn(rope, x, at):
    return rope.rotate(x, *rope.angles(at, dtype=x.dtype))


def test_a_pair_turns_by_position_times_frequency_solved_by_hand():
    """Width 4: dims 0 and 2 turn by 1 radian per token, dims 1 and 3 by 1/100."""
    y = _turn(Rope(RopeConfig(), 4), torch.tensor([[[[1.0, 0.0, 0.0, 1.0]]]], dtype=F64), torch.tensor([[3]]))
    want = [math.cos(3), -math.sin(0.03), math.sin(3), math.cos(0.03)]
    torch.testing.assert_close(y.flatten(), torch.tensor(want, dtype=F64), rtol=0, atol=1e-15)


def test_rotation_equals_the_matrix_of_the_paper_on_half_split_pairs():
    rope, x, at = Rope(RopeConfig(), 8), _x(1, 5, 2, 8), torch.tensor([[0, 1, 5, 17, 400]])
    y = _turn(rope, x, at)
    for t in range(5):
        matrix = torch.zeros(8, 8, dtype=F64)
        for j, w in enumerate(rope.inv_freq().tolist()):
            c, s = math.cos(int(at[0, t]) * w), math.sin(int(at[0, t]) * w)
            matrix[j, j], matrix[j, j + 4], matrix[j + 4, j], matrix[j + 4, j + 4] = c, -s, s, c
        torch.testing.assert_close(y[0, t], x[0, t] @ matrix.T, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(0, 5000),
    n=st.integers(0, 5000),
    shift=st.integers(0, 5000),
    half=st.integers(1, 8),
    rest=st.integers(0, 5),
    scaled=st.booleans(),
)
def test_scores_depend_only_on_the_distance(m, n, shift, half, rest, scaled):
    scaling = YarnScaling(factor=4.0, original_max_len=64) if scaled else None
    rope = Rope(RopeConfig(width=2 * half, scaling=scaling), 2 * half + rest)
    q, k = _x(1, 1, 1, 2 * half + rest), _x(1, 1, 1, 2 * half + rest, seed=1)

    def score(i, j):
        return (_turn(rope, q, torch.tensor([[i]])) * _turn(rope, k, torch.tensor([[j]]))).sum()

    # angles up to 10^4 radians carry a float64 error of 1e-12; products of a few dims
    torch.testing.assert_close(score(m, n), score(m + shift, n + shift), rtol=0, atol=1e-10)


def test_rotation_keeps_the_length_of_every_vector():
    x = _x(2, 7, 3, 16)
    y = _turn(Rope(RopeConfig(), 16), x, torch.arange(7).expand(2, 7) * 1000)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-13, atol=0)


def test_position_zero_turns_nothing():
    x = _x(1, 1, 3, 16)
    assert torch.equal(_turn(Rope(RopeConfig(), 16), x, torch.zeros(1, 1, dtype=torch.int64)), x)


def test_partial_rotary_turns_the_leading_dims_and_leaves_the_rest():
    at, x = torch.arange(5).unsqueeze(0), _x(1, 5, 2, 10)
    y = _turn(Rope(RopeConfig(width=6), 10), x, at)
    assert torch.equal(y[..., 6:], x[..., 6:])
    assert torch.equal(y[..., :6], _turn(Rope(RopeConfig(), 6), x[..., :6], at))


def test_the_gradient_of_a_rotation_is_the_rotation_back():
    rope, at, x, g = (
        Rope(RopeConfig(), 8),
        torch.arange(5).unsqueeze(0),
        _x(1, 5, 2, 8).requires_grad_(),
        _x(1, 5, 2, 8),
    )
    (back,) = torch.autograd.grad(_turn(rope, x, at), x, g)
    torch.testing.assert_close(back, _turn(rope, g, -at), rtol=0, atol=1e-13)


def test_rows_may_stand_at_different_positions():
    rope, x = Rope(RopeConfig(), 8), _x(2, 3, 2, 8)
    at = torch.tensor([[0, 1, 2], [5, 6, 7]])
    y = _turn(rope, x, at)
    assert torch.equal(y[1:], _turn(rope, x[1:], at[1:]))
    assert torch.equal(y[:1], _turn(rope, x[:1], at[:1]))


# (cos, sin) of pairs 0, 1, 2, 5, 12 and 31 of width 64 at some positions, from 50-digit arithmetic
EXACT = {
    1: [(0.540302, 0.841471), (0.731761, 0.681561), (0.846009, 0.533168),
        (0.972014, 0.234921), (0.9995, 0.0316175), (1, 0.000133352)],
    257: [(0.819306, -0.573357), (-0.466329, -0.884611), (0.999964, 0.00845841),
          (-0.311482, -0.950252), (-0.269691, 0.962947), (0.999413, 0.0342648)],
    8191: [(-0.64639, -0.763007), (-0.841992, -0.53949), (0.845677, 0.533696),
           (0.63101, 0.775775), (0.158559, 0.98735), (0.460456, 0.887682)],
    131071: [(-0.817983, -0.575242), (0.0546179, 0.998507), (0.16306, -0.986616),
             (0.466544, -0.884498), (-0.481666, -0.876355), (0.198512, -0.980099)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_exact_whatever_the_dtype_of_the_model(dtype):
    rope = nn.ModuleList([Rope(RopeConfig(), 64)]).to(dtype)[0]
    cos, sin = rope.angles(torch.tensor([list(EXACT)]), dtype=dtype)
    assert cos.dtype == sin.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for t, pairs in enumerate(EXACT.values()):
        for j, (c, s) in zip([0, 1, 2, 5, 12, 31], pairs):
            for dim, sign in ((j, -1), (j + 32, 1)):  # the values are given to six digits
                assert cos[0, t, 0, dim].item() == pytest.approx(c, abs=1e-6)
                assert sin[0, t, 0, dim].item() == pytest.approx(sign * s, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rotated_half_precision_vector_is_the_exact_one_rounded_once(dtype):
    rope, at, x = Rope(RopeConfig(width=64), 80), torch.tensor([[0, 257, 1857, 32767]]), _x(1, 4, 3, 80, dtype=dtype)
    got, exact = _turn(rope, x, at), _turn(rope, x.double(), at)
    assert got.dtype == dtype
    half_step = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    # 3e-7: float32 products of values up to 4, which may cancel
    torch.testing.assert_close(got.double(), exact, rtol=half_step, atol=1e-6)


def test_padding_at_minus_one_turns_into_something_finite():
    y = _turn(
        Rope(RopeConfig(scaling=DynamicScaling(factor=2.0, original_max_len=4)), 8),
        _x(1, 2, 1, 8),
        torch.tensor([[-1, -1]]),
    )
    assert y.isfinite().all()


@pytest.mark.parametrize("scaling", [None, LinearScaling(factor=2.0), NTKScaling(factor=2.0)])
def test_schemes_of_equal_config_and_width_share_their_angles(scaling):
    cfg = RopeConfig(scaling=scaling)
    assert Rope(cfg, 8).key == Rope(cfg, 8).key
    assert Rope(cfg, 8).key != Rope(cfg, 16).key
    assert Rope(RopeConfig(width=8), 16).width == 8
    assert not Rope(cfg, 8).by_length


@pytest.mark.parametrize(
    "scaling", [DynamicScaling(factor=2.0, original_max_len=4), LONGROPE], ids=["dynamic", "longrope"]
)
def test_angles_of_a_row_use_that_rows_length(scaling):
    rope, at = Rope(RopeConfig(scaling=scaling), 4), torch.tensor([[0, 1, 2], [5, 6, 7]])
    assert rope.by_length
    cos, _ = rope.angles(at, dtype=F64, length=torch.tensor([3, 8]))
    for row, length in enumerate([3, 8]):
        want = (at[row].unsqueeze(-1) * rope.inv_freq(length)).cos()
        torch.testing.assert_close(cos[row, :, 0], want.repeat(1, 2), rtol=0, atol=1e-14)


def _frequencies(scaling, length):
    """Radians per token of the two pairs of width 4 and base 10,000, by the formulas of the two papers."""
    if scaling.kind == "dynamic":
        growth = scaling.factor * max(length, 4) / 4 - (scaling.factor - 1)
        return [1.0, (10000.0 * growth ** (4 / 2)) ** (-2 / 4)]
    return [w / f for w, f in zip([1.0, 0.01], scaling.long_factor if length > 4 else scaling.short_factor)]


@pytest.mark.parametrize("cuts", [[9], [1] * 9, [3, 1, 5]], ids=["whole", "one by one", "uneven"])
@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize(
    "scaling", [DynamicScaling(factor=2.0, original_max_len=4), LONGROPE], ids=["dynamic", "longrope"]
)
@torch.no_grad()
def test_a_key_keeps_the_angles_of_the_texts_length_at_which_it_was_read(scaling, kind, cuts):
    """Turned here by complex numbers: a query and a key each by the length when they came."""
    position = Rope(RopeConfig(scaling=scaling), 4)
    layer = GroupedQueryAttention(8, AttentionConfig(n_heads=1, n_kv_heads=1, d_head=4), position=position).double()
    for i, weight in enumerate(layer.parameters()):
        weight.copy_(_x(*weight.shape, seed=i))
    x, cache = _x(2, 9, 8), Cache([layer.cache_spec()], batch=2, dtype=F64, kind=kind, capacity=9)
    got, lengths = [], []
    for piece in x.split(cuts, dim=1):
        places = cache.next_places(piece.size(1))
        cache.start(places)
        got.append(layer(piece, Step(places, kernel="plain"), cache.layers[0]))
        lengths += [len(lengths) + piece.size(1)] * piece.size(1)

    angles = torch.tensor([[t * w for w in _frequencies(scaling, n)] for t, n in enumerate(lengths)], dtype=F64)
    q, k = (torch.complex(y[..., :2], y[..., 2:]) * torch.polar(torch.ones(9, 2, dtype=F64), angles)
            for y in (layer.wq(x), layer.wk(x)))  # fmt: skip
    scores = (q @ k.mH).real / 2 + torch.full((9, 9), -math.inf, dtype=F64).triu(1)
    want = layer.wo(scores.softmax(-1) @ layer.wv(x))
    # float64; only the order of the sums differs
    torch.testing.assert_close(torch.cat(got, dim=1), want, rtol=0, atol=1e-12)


def test_keys_are_turned_before_they_are_cached():
    rope, step = Rope(RopeConfig(), 8), Step(Places.run(3, 2))
    q, k = _x(1, 2, 4, 8), _x(1, 2, 2, 8, seed=1)
    q_, k_ = rope.turn(q, k, step)
    at = torch.tensor([[3, 4]])
    assert torch.equal(q_, _turn(rope, q, at))
    assert torch.equal(k_, _turn(rope, k, at))


def test_a_rope_of_one_pair_works():
    x, at = _x(1, 3, 1, 2), torch.arange(3).unsqueeze(0)
    y = _turn(Rope(RopeConfig(), 2), x, at)
    torch.testing.assert_close(
        y[0, 2, 0, 0], x[0, 2, 0, 0] * math.cos(2) - x[0, 2, 0, 1] * math.sin(2), rtol=0, atol=1e-14
    )


def test_the_gradient_of_a_turn_is_the_turn_back():
    """Also of a part of the head's width, under a factor on the angles' cos and sin, and once more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 2, 6, generator=generator, dtype=torch.float64).requires_grad_()
    rope = Rope(RopeConfig(width=4), 6)
    cos, sin = (1.3 * c for c in rope.angles(torch.arange(3).expand(2, 3), dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: rope.rotate(x, cos, sin), (x,))
    assert torch.autograd.gradgradcheck(lambda x: rope.rotate(x, cos, sin), (x,))
    up = torch.randn(2, 3, 2, 6, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(rope.rotate(x, cos, sin), x, up)
    with torch.no_grad():
        assert torch.equal(gradient, rope.rotate(up, cos, -sin))


@pytest.mark.parametrize("scaling", [None, LONGROPE, DynamicScaling(factor=2.0, original_max_len=4)])
def test_in_a_graph_angles_are_one_operation_with_the_same_numbers(scaling):
    """Left to the compiler, every layer would take every cosine again."""
    rope, at = Rope(RopeConfig(width=4, scaling=scaling), 8), torch.tensor([[0, 1, 5], [2, 3, 900]])
    length, graphs = torch.tensor([3, 901]), []

    def keep(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes])
        return graph

    given = {"dtype": torch.float32, "length": length}
    graph = torch.compile(rope.angles, backend=keep, fullgraph=True)(at, **given)
    assert all(torch.equal(a, b) for a, b in zip(graph, rope.angles(at, **given), strict=True))
    assert graphs[0].count(torch.ops.onehop.cos_sin.default) == 1
    torch.library.opcheck(in_graphs, (torch.randn(2, 3, 4, dtype=torch.float64), 1.5, torch.float32))
