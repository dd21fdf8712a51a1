"""Rotary positions in both ages of config.json say the same."""

import pytest

from onehop.base.errors import CheckpointError
from onehop.formats import read_config, write_config
from tests.golden import CONFIG
from tests.small_models import decoder

OLD = {k: v for k, v in CONFIG.items() if k != "rope_theta"}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 4.5, "original_max_position_embeddings": 16}
LONG = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "original_max_position_embeddings": 16, "factor": 3.0}
SCALINGS = [
    ("linear", {"factor": 3.0}),
    ("dynamic", {"factor": 2.5}),
    ("yarn", YARN),
    ("yarn", {**YARN, "beta_fast": 20, "beta_slow": 2, "truncate": False}),
    ("yarn", {**YARN, "attention_factor": 1.2}),
    ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}),
    ("llama3", LLAMA3),
    ("longrope", LONG),
    ("longrope", {**LONG, "attention_factor": 1.3}),
]


def position(**keys):
    config = read_config({**OLD, **keys})
    return config.blocks[0].attention.position, config.max_len


def test_both_ages_default_to_plain_rotation_at_ten_thousand():
    assert position() == position(rope_theta=10000.0) == position(rope_scaling=None, rope_parameters=None)
    assert position()[0].theta == 10000.0
    assert position(rope_theta=5e5)[0].theta == position(rope_parameters={"rope_theta": 5e5})[0].theta == 5e5


@pytest.mark.parametrize(("kind", "table"), SCALINGS)
def test_every_spelling_of_a_scaling_is_the_same_scaling(kind, table):
    new = position(rope_parameters={"rope_type": kind, "rope_theta": 5e5, **table})
    assert new == position(rope_theta=5e5, rope_scaling={"type": kind, **table})
    assert new == position(rope_theta=5e5, rope_scaling={"rope_type": kind, **table})
    assert new == position(rope_theta=5e5, rope_scaling={"type": kind, "rope_type": kind, **table, "finetuned": True})
    assert new[0].scaling.kind == kind
    assert new[0].theta == 5e5


@pytest.mark.parametrize(("kind", "table"), SCALINGS)
def test_a_scaling_is_written_in_both_ages_and_each_reads_back_alone(kind, table):
    config = read_config({**OLD, "rope_theta": 5e5, "rope_scaling": {"rope_type": kind, **table}})
    written = write_config(config)
    assert read_config(written) == config
    assert read_config({k: v for k, v in written.items() if k not in ("rope_theta", "rope_scaling")}) == config
    assert read_config({k: v for k, v in written.items() if k != "rope_parameters"}) == config


def test_dynamic_scaling_counts_from_max_position_embeddings():
    dynamic, longest = position(rope_scaling={"type": "dynamic", "factor": 2.5}, max_position_embeddings=16)
    assert (dynamic.scaling.original_max_len, longest) == (16, 40)


def test_yarn_reaches_factor_times_its_original_length():
    yarn = {"rope_scaling": {"type": "yarn", **YARN}}
    assert position(**yarn, max_position_embeddings=16)[1] == 64
    assert position(**yarn, max_position_embeddings=100)[1] == 100


def test_what_a_scaling_leaves_out_follows_from_the_length():
    yarn, _ = position(
        rope_scaling={"type": "yarn", "original_max_position_embeddings": 16}, max_position_embeddings=48
    )
    assert yarn.scaling.factor == 3.0
    llama3 = {k: v for k, v in LLAMA3.items() if not k.startswith("orig")}
    assert position(rope_scaling={"rope_type": "llama3", **llama3})[0].scaling.original_max_len == 64
    beside, _ = position(rope_scaling={"rope_type": "llama3", **llama3}, original_max_position_embeddings=8)
    assert beside.scaling.original_max_len == 8
    longrope = {k: v for k, v in LONG.items() if k != "factor"}
    assert position(rope_scaling={"type": "su", **longrope})[0].scaling.factor == 4.0


def test_what_their_code_does_not_look_at_is_not_taken_over():
    """One mscale without the other, and what an attention factor is computed from where it is given."""
    assert position(rope_scaling={"type": "yarn", **YARN, "mscale": 0.7}) == position(
        rope_scaling={"type": "yarn", **YARN}
    )
    given = {"type": "yarn", **YARN, "attention_factor": 1.2}
    assert position(rope_scaling={**given, "mscale": 0.7, "mscale_all_dim": 0.9}) == position(rope_scaling=given)
    assert position(rope_scaling={**given, "beta_fast": 0}) == position(rope_scaling=given)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"rope_scaling": {"type": "ropey", "factor": 2}}, r"scaling 'ropey' is not known\. Known: default, dynamic,"),
        ({"rope_scaling": {"type": "linear"}}, "rotary scaling 'linear' needs factor, which is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": 1}}, r"mrope_section=1 is unknown for"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "rope_scaling has two types: 'linear' and 'yarn'"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear' should be a table"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, r"rope_theta twice and differently: 10000\.0"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5 cannot be honoured: whole heads turn"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings='long' should be a whole number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, r"factor=-2 should be a number above 0"),
        ({"rope_theta": "high"}, "rope_theta='high' should be a number above 0"),
        ({"rope_scaling": {"type": ["yarn"], "factor": 2}}, r"scaling \"\['yarn'\]\" is not known"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": -3}}, "position.scaling.beta_fast"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(keys, text):
    with pytest.raises(CheckpointError, match=text):
        position(**keys)


def test_a_fixed_ntk_scaling_is_written_as_the_base_that_it_is():
    """theta' = theta · factor^(d/(d-2)), here with d = 4: squared."""
    written = write_config(decoder(scaling={"kind": "ntk", "factor": 3.0}))
    assert written["rope_theta"] == pytest.approx(10000.0 * 9)
    assert written["rope_scaling"] is None
