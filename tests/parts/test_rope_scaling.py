"""Stretched frequencies: the hand-made identities of each way, published tables, and transformers' own."""

import math

import pytest
import torch

from onehop.config import RopeConfig
from onehop.config import position as config
from onehop.config.position import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    YarnScaling,
)
from onehop.parts.rope import Rope
from onehop.parts.rope_scaling import STRETCHES, plain_inv_freq


def _rope(scaling=None, *, width=128, theta=10000.0):
    return Rope(RopeConfig(theta=theta, scaling=scaling), width)


def _close(got, want, rel=1e-12):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=torch.float64), rtol=rel, atol=0)


def test_configs_and_parts_name_the_same_scalings():
    assert set(STRETCHES) == set(config.SCALINGS)


def test_plain_frequencies_are_powers_of_theta():
    _close(_rope(width=8).inv_freq(), [1.0, 0.1, 0.01, 0.001])


@pytest.mark.parametrize(("width", "theta", "factor"), [(8, 1e4, 4.0), (64, 1e4, 8.0), (16, 5e5, 2.5)])
def test_linear_divides_every_frequency_by_the_factor(width, theta, factor):
    _close(
        _rope(LinearScaling(factor=factor), width=width, theta=theta).inv_freq(), plain_inv_freq(theta, width) / factor
    )


@pytest.mark.parametrize(
    ("width", "theta", "factor", "base"),
    [(8, 1e4, 4.0, 63496.04207873), (64, 1e4, 8.0, 85550.37588569), (16, 5e5, 2.5, 1424815.351309)],
)
def test_ntk_raises_the_base_and_so_keeps_the_first_pair_and_divides_the_last(width, theta, factor, base):
    got, plain = _rope(NTKScaling(factor=factor), width=width, theta=theta).inv_freq(), plain_inv_freq(theta, width)
    _close(got, plain_inv_freq(base, width), rel=1e-11)  # the base is given to 13 digits
    assert got[0] == 1
    _close(got[-1] * factor, plain[-1])


def test_ntk_counts_the_turning_dims_and_not_the_whole_head():
    partial = Rope(RopeConfig(width=8, scaling=NTKScaling(factor=4.0)), 64)
    _close(partial.inv_freq(), _rope(NTKScaling(factor=4.0), width=8).inv_freq())


def test_dynamic_changes_nothing_up_to_the_original_length():
    rope = _rope(DynamicScaling(factor=2.0, original_max_len=100))
    for length in (None, 1, 100):
        assert torch.equal(rope.inv_freq(length), plain_inv_freq(10000.0, 128))


def test_dynamic_is_ntk_by_a_factor_that_grows_with_the_text():
    rope = _rope(DynamicScaling(factor=2.0, original_max_len=100))
    for length in (101, 150, 400):
        grown = NTKScaling(factor=2.0 * length / 100 - 1)
        _close(rope.inv_freq(length), _rope(grown).inv_freq())


def test_dynamic_gives_each_row_the_frequencies_of_its_own_length():
    rope = _rope(DynamicScaling(factor=2.0, original_max_len=100))
    rows = rope.inv_freq(torch.tensor([50, 400]))  # (2, 64)
    assert torch.equal(rows[0], rope.inv_freq(50))
    assert torch.equal(rows[1], rope.inv_freq(400))


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    """Width 128, base 1e4, 4096 tokens, factor 8: pairs to 20 turn more than 32 times, from 46 less than once."""
    got = _rope(YarnScaling(factor=8.0, original_max_len=4096)).inv_freq() / plain_inv_freq(10000.0, 128)  # (64,)
    _close(got[:21], [1.0] * 21)
    _close(got[46:], [1 / 8] * 18)
    assert (got[20:47].diff() < 0).all()


def test_the_untruncated_ramp_of_yarn_ends_where_pairs_turn_beta_times():
    scaling = YarnScaling(factor=8.0, original_max_len=4096, truncate=False)
    plain = plain_inv_freq(10000.0, 128)
    turns = 4096 * plain / (2 * math.pi)
    ratio = _rope(scaling).inv_freq() / plain
    assert torch.equal(ratio > 1 - 1e-9, turns >= 32)
    assert torch.equal(ratio < 1 / 8 + 1e-9, turns <= 1)
    # linear in the pair's number between its ends
    j = torch.arange(64, dtype=torch.float64)
    low, high = (64 * math.log(4096 / (n * 2 * math.pi)) / math.log(10000) for n in (32, 1))
    between = (turns < 32) & (turns > 1)
    want = 1 - (1 - 1 / 8) * (j - low) / (high - low)
    _close(ratio[between], want[between])


def test_rounding_the_ends_of_yarns_ramp_to_whole_pairs_moves_the_ramp():
    a, b = (_rope(YarnScaling(factor=8.0, original_max_len=4096, truncate=t)).inv_freq() for t in (True, False))
    assert not torch.allclose(a[21:46], b[21:46], rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"factor": 8.0}, 0.1 * math.log(8) + 1),
        ({"factor": 1.0}, 1.0),
        ({"factor": 8.0, "attention_factor": 1.25}, 1.25),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (
            {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5},
            (1 + 0.0707 * math.log(40)) / (1 + 0.05 * math.log(40)),
        ),
        ({"factor": 40.0, "mscale": 0.707}, 1 + 0.0707 * math.log(40)),
    ],
)
def test_yarns_attention_factor_follows_the_paper_or_its_mscales(options, want):
    rope = _rope(YarnScaling(original_max_len=4096, **options))
    assert rope.attention_factor == pytest.approx(want, rel=1e-12)
    cos, sin = rope.angles(torch.tensor([[7]]), dtype=torch.float64)
    _close((cos.square() + sin.square()).sqrt(), torch.full((1, 1, 1, 128), want, dtype=torch.float64))


LLAMA3 = {  # width, theta, factor, original length: pairs kept, pairs divided, and some of the frequencies
    (128, 5e5, 8.0, 8192): (
        29,
        29,
        {28: 0.003211445994753, 29: 0.002166570763503, 34: 0.000178507812768, 35: 9.556212353965e-05},
    ),
    (64, 5e5, 32.0, 8192): (15, 14, {14: 0.003211445994753, 15: 0.001290547928209, 17: 9.708287802628e-05}),
    (16, 1e4, 4.0, 64): (1, 5, {1: 0.254647908947, 2: 0.0254647908947, 3: 0.007905694150421}),
}


@pytest.mark.parametrize("case", LLAMA3, ids=str)
def test_llama3_keeps_short_waves_divides_long_ones_and_blends_frequencies_between(case):
    width, theta, factor, original = case
    kept, divided, some = LLAMA3[case]
    got = _rope(Llama3Scaling(factor=factor, original_max_len=original), width=width, theta=theta).inv_freq()
    plain = plain_inv_freq(theta, width)
    _close(got[:kept], plain[:kept])
    _close(got[-divided:], plain[-divided:] / factor)
    for j, want in some.items():
        _close(got[j], want)  # given to 13 digits


def test_longrope_takes_the_list_of_each_rows_length():
    scaling = LongRopeScaling(short_factor=(1.0, 2.0), long_factor=(4.0, 8.0), original_max_len=10)
    rope = _rope(scaling, width=4)
    _close(rope.inv_freq(torch.tensor([10, 11])), [[1.0, 0.01 / 2], [1 / 4, 0.01 / 8]])
    _close(rope.inv_freq(), [1.0, 0.01 / 2])


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, 1.0),
        ({"factor": 1.0}, 1.0),
        ({"factor": 32.0}, math.sqrt(1 + math.log(32) / math.log(4096))),
        ({"factor": 32.0, "attention_factor": 1.5}, 1.5),
    ],
)
def test_longropes_attention_factor_follows_its_release(options, want):
    scaling = LongRopeScaling(short_factor=(1.0,) * 64, long_factor=(2.0,) * 64, original_max_len=4096, **options)
    assert _rope(scaling).attention_factor == pytest.approx(want, rel=1e-12)


SHORT, LONG = tuple(1 + j / 64 for j in range(32)), tuple(1 + j / 2 for j in range(32))
ORIGINAL = {"original_max_position_embeddings": 4096}
THEIRS = {
    "linear": (LinearScaling(factor=4.0), {"factor": 4.0}),
    "dynamic": (DynamicScaling(factor=4.0, original_max_len=8192), {"factor": 4.0}),
    "yarn": (YarnScaling(factor=4.0, original_max_len=4096), {"factor": 4.0, **ORIGINAL}),
    "yarn, given ramp": (
        YarnScaling(factor=16.0, original_max_len=4096, beta_fast=24.0, beta_slow=2.0, truncate=False),
        {"factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0, "truncate": False, **ORIGINAL},
    ),
    "yarn, mscales": (
        YarnScaling(factor=40.0, original_max_len=4096, mscale=0.707, mscale_all_dim=0.5),
        {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5, **ORIGINAL},
    ),
    "llama3": (
        Llama3Scaling(factor=8.0, original_max_len=4096, low_freq_factor=1.5, high_freq_factor=5.0),
        {"factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0, **ORIGINAL},
    ),
    "longrope": (
        LongRopeScaling(short_factor=SHORT, long_factor=LONG, original_max_len=4096, factor=32.0),
        {"short_factor": list(SHORT), "long_factor": list(LONG), "factor": 32.0, **ORIGINAL},
    ),
}


@pytest.mark.parametrize("length", [None, 4096, 9000])
@pytest.mark.parametrize("name", THEIRS)
def test_frequencies_equal_those_of_transformers(name, length):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling, parameters = THEIRS[name]
    cfg = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": scaling.kind, "rope_theta": 10000.0, **parameters},
    )
    want, factor = ROPE_INIT_FUNCTIONS[scaling.kind](cfg, torch.device("cpu"), seq_len=length)
    rope = _rope(scaling, width=64)
    _close(rope.inv_freq(length), want.double(), rel=2e-6)  # theirs are float32: powers of theta lose a few steps
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
