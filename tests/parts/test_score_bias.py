"""A bias by tiles is the bias, and its gradient is the gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.parts.places import Places
from onehop.parts.score_bias import Direct, Strip, tiled_bias
from onehop.parts.score_rule import SumOfBiases
from onehop.parts.sight import Sees, Sight
from tests.score_cases import BIASES, Hiding, make_bias, scheme


@settings(deadline=None, max_examples=80)
@given(
    name=st.sampled_from([kind for kind in BIASES if scheme(kind, 2).relative]),
    t=st.integers(1, 9),
    s=st.integers(1, 9),
    first=st.integers(0, 9),
    k_first=st.integers(0, 9),
    data=st.data(),
)
def test_tiles_of_a_strip_are_tiles_of_the_bias_with_their_columns_reversed(name, t, s, first, k_first, data):
    sight = Sight(Sees("all"), Places.run(first, t), Places.run(k_first, s))
    bias = make_bias(name, 2, torch.float64)
    rows, cols = (
        slice(*sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))) for n in (t, s)
    )
    strip = tiled_bias(bias, sight)
    assert isinstance(strip, Strip)
    whole = bias(sight.q.at, sight.k.at)
    assert torch.equal(strip.tile(rows, cols), whole[..., rows, cols].flip(-1))


@pytest.mark.parametrize("kind", [Strip, Direct])
def test_the_gradients_of_tiles_add_up_to_that_of_the_whole(kind):
    t, s = 5, 7
    sight = Sight(Sees("all"), Places.run(2, t), Places.run(0, s))
    bias = make_bias("t5", 2, torch.float64)
    d = torch.randn(3, 2, t, s, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (want,) = torch.autograd.grad(bias(sight.q.at, sight.k.at).expand(3, -1, -1, -1), bias.table, d)
    ours = kind(bias, sight, dict(bias.named_parameters()))
    for rows in (slice(0, 2), slice(2, 5)):
        for cols in (slice(0, 3), slice(3, 7)):
            ours.tile(rows, cols)
            part = d[..., rows, cols]
            ours.learn(rows, cols, part.flip(-1) if ours.reverse else part)
    ours.finish()
    torch.testing.assert_close(ours.gradients[0], want, rtol=0, atol=1e-12)  # float64


def test_only_a_bias_of_distances_over_runs_becomes_a_strip():
    run, padded = Places.run(0, 4), Places(torch.tensor([[-1, 0, 1, 2]]))
    alibi, hiding = make_bias("alibi", 2, torch.float64), Hiding()
    assert isinstance(tiled_bias(alibi, Sight(Sees(), run, run)), Strip)
    assert isinstance(tiled_bias(SumOfBiases(alibi, alibi), Sight(Sees(), run, run)), Strip)
    for bias, at in ((alibi, padded), (hiding, run), (SumOfBiases(alibi, hiding), run)):
        assert isinstance(tiled_bias(bias, Sight(Sees(), at, at)), Direct)
