"""Configs as text: what is written reads back as an equal config."""

import json
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onehop
from onehop.base.errors import ConfigError
from onehop.config import ModelConfig, Recipe, model_from_dict, read, to_dict, to_json, to_toml
from onehop.config.model import BlockConfig, DropoutConfig, EmbedConfig, HeadConfig

RATE = st.sampled_from([0.0, 0.1, 0.5])
POSITIVE = st.floats(1e-9, 1e9, allow_nan=False)
MAYBE = st.one_of(st.none(), POSITIVE)


def norms(kinds=("rms", "layer", "none")):
    rows = {
        "none": st.just({"kind": "none"}),
        "rms": st.fixed_dictionaries(
            {"kind": st.just("rms"), "eps": st.floats(0, 1), "offset": st.sampled_from([0, 1])}
        ),
        "layer": st.fixed_dictionaries(
            {"kind": st.just("layer"), "bias": st.booleans(), "offset": st.sampled_from([0, 1])}
        ),
    }
    return st.one_of(*(rows[kind] for kind in kinds))


SCALINGS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"kind": st.sampled_from(["linear", "ntk"]), "factor": POSITIVE}),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["dynamic", "yarn", "llama3"]), "factor": POSITIVE, "original_max_len": st.integers(1)}
    ),
    st.just(
        {
            "kind": "longrope",
            "short_factor": [1.0, 2.0, 3.0, 4.5],
            "long_factor": (1.0, 2.0, 3.0, 1e-7),
            "original_max_len": 8,
            "factor": 2.0,
        }
    ),
)
POSITIONS = st.one_of(
    st.sampled_from(["rope", "alibi", "t5", "none"]).map(lambda kind: {"kind": kind}),
    st.fixed_dictionaries({"kind": st.just("rope"), "theta": st.floats(1.5, 1e9), "scaling": SCALINGS}),
    st.fixed_dictionaries({"kind": st.just("t5"), "n_buckets": st.just(8), "max_distance": st.integers(9, 99)}),
)
ATTENTIONS = st.fixed_dictionaries(
    {"n_heads": st.just(4), "d_head": st.just(8), "n_kv_heads": st.sampled_from([1, 2, 4]), "position": POSITIONS},
    optional={
        "bias": st.booleans(),
        "bias_out": st.booleans(),
        "qk_norm": st.fixed_dictionaries({"norm": norms(), "span": st.sampled_from(["head", "all"])}),
        "window": st.integers(1, 99),
        "softcap": MAYBE,
        "scale": MAYBE,
        "sinks": st.booleans(),
    },
)
FFNS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["plain", "gated"]), "d_ff": st.integers(1, 99), "bias": st.booleans()}
    ),
    st.fixed_dictionaries(
        {"kind": st.just("moe"), "d_ff": st.integers(1, 9), "n_experts": st.integers(2, 9), "n_active": st.just(2)},
        optional={"balance_weight": RATE, "d_ff_shared": st.integers(1, 9), "z_weight": RATE},
    ),
)
BLOCKS = st.fixed_dictionaries(
    {"attention": ATTENTIONS, "ffn": FFNS},
    optional={
        "norm": norms(("rms", "layer")),
        "norm_out": st.sampled_from(["inside", "none"]),
        "residual_scale": POSITIVE,
    },
)
MODELS = st.builds(
    dict,
    vocab_size=st.one_of(st.none(), st.integers(1, 2**31)),
    d_model=st.just(32),
    n_layers=st.integers(3, 9),
    max_len=st.integers(1, 2**31),
    blocks=st.dictionaries(st.sampled_from(["block", "local", "a-1"]), BLOCKS, min_size=1),
    final_norm=norms(),
    embed=st.builds(dict, position=st.sampled_from(["none", "learned", "sinusoidal"]), scale=POSITIVE, norm=norms()),
    head=st.builds(dict, tied=st.booleans(), softcap=MAYBE),
    dropout=st.builds(dict, embed=RATE, attention=RATE),
    parts=st.lists(st.text(min_size=1, max_size=9)),
)
RECIPES = st.builds(
    dict,
    out=st.text(min_size=1),
    about=st.text(),
    model=MODELS.map(lambda model: {**model, "vocab_size": None, "max_len": 10**6}),
    data=st.builds(dict, files=st.lists(st.text(min_size=1), min_size=1), separator=st.one_of(st.none(), st.text())),
    train=st.builds(
        dict,
        steps=st.integers(0, 10**9),
        batch_size=st.just(4),
        clip=MAYBE,
        context=st.one_of(st.none(), st.integers(2, 99)),
    ),
)


def both_ways(config):
    again = [tomllib.loads(to_toml(config)), json.loads(to_json(config))]
    assert again[0] == again[1] == to_dict(config)
    return [type(config).model_validate(raw) for raw in again]


@pytest.mark.parametrize("name", onehop.presets)
def test_every_preset_reads_back_from_what_is_written(name):
    config = onehop.presets[name]
    assert both_ways(config) == [config, config]
    assert hash(both_ways(config)[0]) == hash(config)


@settings(max_examples=100, deadline=None)
@given(MODELS)
def test_every_model_reads_back_from_what_is_written(raw):
    config = ModelConfig(**raw)
    assert both_ways(config) == [config, config]


@settings(max_examples=50, deadline=None)
@given(RECIPES.filter(lambda raw: raw["data"]["separator"] != "none"))
def test_every_recipe_reads_back_from_what_is_written(raw):
    recipe = Recipe(**raw)
    assert both_ways(recipe) == [recipe, recipe]


def test_the_resolved_recipe_is_a_recipe(tmp_path):
    """What training leaves beside its result trains again, with no preset, base or command line."""
    (tmp_path / "mine.toml").write_text(
        '[model]\npreset = "tiny"\nvocab_size = "none"\n[data]\ncorpus = "fables"\n[train]\nsteps = 3\nbatch_size = 2\n'
    )
    first = read(tmp_path / "mine.toml", ["train.clip=none", "model.attention.window=9"]).recipe
    (tmp_path / "recipe.toml").write_text(to_toml(first))
    (tmp_path / "recipe.json").write_text(to_json(first))
    assert read(tmp_path / "recipe.toml").recipe == first
    assert read(tmp_path / "recipe.json").recipe == first
    assert first.train.clip is None


def test_none_is_written_only_where_leaving_out_would_mean_another_value():
    recipe = Recipe(
        model={"preset": "tiny"}, data={"corpus": "fables"}, train={"steps": 1, "batch_size": 1, "clip": None}
    )
    written = to_dict(recipe)
    assert written["train"]["clip"] == "none"
    assert "window" not in written["model"]["attention"]
    assert "encoder" not in written["model"]


def test_a_model_of_one_nameless_block_is_written_without_blocks():
    assert "blocks" not in to_dict(onehop.presets["tiny"])
    assert list(to_dict(onehop.presets["gemma-3-270m"])["blocks"]) == ["local", "global"]


@settings(max_examples=20, deadline=None)
@given(MODELS)
def test_pydantic_s_own_dump_reads_back_too(raw):
    config = ModelConfig(**raw)
    assert ModelConfig.model_validate(config.model_dump()) == config
    assert ModelConfig.model_validate(json.loads(config.model_dump_json())) == config


def test_a_saved_model_needs_its_vocabulary():
    raw = to_dict(onehop.presets["tiny"])
    assert model_from_dict(raw) == onehop.presets["tiny"]
    with pytest.raises(ConfigError, match="vocab_size is left out"):
        model_from_dict({key: value for key, value in raw.items() if key != "vocab_size"})


def test_configs_are_frozen_and_equal_ones_are_interchangeable():
    config = onehop.presets["tiny"]
    with pytest.raises(ValueError, match="frozen"):
        config.d_model = 3
    with pytest.raises(ValueError, match="frozen"):
        config.blocks[0].attention.n_heads = 3
    assert config.model_copy(update={"init_std": 0.5}) != config


@pytest.mark.parametrize("part", [BlockConfig, EmbedConfig, HeadConfig, DropoutConfig, ModelConfig, Recipe])
def test_every_field_says_what_it_is_for(part):
    silent = [
        name for name, field in part.model_fields.items() if not field.description and field.is_required() is False
    ]
    assert not silent
