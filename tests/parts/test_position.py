"""Position schemes by name, and the base that a user's own extends."""

import pytest
import torch

from onehop.base.errors import ConfigError
from onehop.config import AlibiConfig, AttentionConfig, PositionConfig, RopeConfig, T5Config
from onehop.config import position as config
from onehop.parts.bias import Alibi, T5Bias
from onehop.parts.places import Places
from onehop.parts.position import POSITIONS, PositionScheme
from onehop.parts.rope import Rope
from onehop.parts.step import Step

CONFIGS = {"rope": RopeConfig(), "alibi": AlibiConfig(), "t5": T5Config(), "none": PositionConfig()}


def _attention(**options):
    return AttentionConfig(n_heads=4, n_kv_heads=2, d_head=8, **options)


def test_configs_and_parts_name_the_same_schemes():
    assert set(POSITIONS) == set(config.POSITIONS) == set(CONFIGS)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_scheme_says_what_it_does(kind):
    scheme = POSITIONS.get(kind)(CONFIGS[kind], _attention())
    assert (scheme.turns, scheme.biases) == (kind == "rope", kind in ("alibi", "t5"))


def test_a_scheme_is_built_for_the_heads_of_its_attention():
    rope, alibi, t5 = (POSITIONS.get(kind)(CONFIGS[kind], _attention()) for kind in ("rope", "alibi", "t5"))
    assert isinstance(rope, Rope)
    assert rope.width == 8
    assert isinstance(alibi, Alibi)
    assert alibi.n_heads == 4
    assert isinstance(t5, T5Bias)
    assert t5.table.shape == (32, 4)


def test_only_attention_that_sees_later_keys_gives_them_buckets_of_their_own():
    at = torch.arange(6).unsqueeze(0)
    both = POSITIONS.get("t5")(T5Config(), _attention(sees="all"))(at, at)
    past = POSITIONS.get("t5")(T5Config(), _attention(sees="causal"))(at, at)
    assert both[0, 0, 0, 1:].unique().numel() == 5
    assert past[0, 0, 0].unique().numel() == 1  # all later keys count as distance 0


def test_no_positions_leave_q_and_k_alone():
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 2, 8)
    scheme = POSITIONS.get("none")(PositionConfig(), _attention())
    assert scheme.turn(q, k, None) == (q, k)


def test_a_scheme_of_ones_own_that_forgets_its_half_is_told_so():
    class Forgetful(PositionScheme):
        turns = biases = True

    scheme, at = Forgetful(), torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="Forgetful has no method angles: define it, or leave turns = False"):
        scheme.angles(at, dtype=torch.float32)
    with pytest.raises(ConfigError, match="Forgetful has no method rotate"):
        scheme.rotate(at, at, at)
    with pytest.raises(ConfigError, match="Forgetful has no method forward: define it, or leave biases = False"):
        scheme(at, at)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_scheme_is_compiled_as_one_graph(kind):
    scheme, at = POSITIONS.get(kind)(CONFIGS[kind], _attention()), torch.arange(5).unsqueeze(0)
    q, k = torch.randn(1, 5, 4, 8), torch.randn(1, 5, 2, 8)

    def place():
        out = scheme.turn(q, k, Step(Places.run(0, 5)))
        return [*out, scheme(at, at)] if scheme.biases else out

    torch.compiler.reset()
    for got, want in zip(torch.compile(place, backend="eager", fullgraph=True)(), place()):
        assert torch.equal(got, want)
