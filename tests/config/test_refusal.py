"""What a user reads after a mistake: the path as it was typed, the nearest name, and never pydantic's own report."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from onehop.base.errors import ConfigError
from onehop.config import FFNConfig, GatedConfig, ModelConfig, NormConfig, Recipe, RMSNormConfig
from onehop.config.part import Part

RECIPE = {
    "model": {
        "d_model": 32,
        "n_layers": 2,
        "max_len": 64,
        "attention": {"n_heads": 4},
        "ffn": {"kind": "gated", "d_ff": 64},
    },
    "data": {"corpus": "fables"},
    "train": {"steps": 10, "batch_size": 4},
}


def with_key(path, value):
    """RECIPE with one more key, written at `path`."""
    words = path.split(".")

    def put(table, words):
        return {**table, words[0]: value if len(words) == 1 else put(table.get(words[0], {}), words[1:])}

    return put(RECIPE, words)


def refused(raw, root=Recipe):
    with pytest.raises(ConfigError) as error:
        root(**raw)
    assert "\n" not in str(error.value)
    return str(error.value)


UNKNOWN = [
    ("train.step", "Did you mean train.steps?"),
    ("train.learning_rate", "Did you mean train.batch_size?"),
    ("model.attention.n_head", "Did you mean model.attention.n_heads?"),
    ("model.n_head", "Did you mean model.attention.n_heads?"),
    ("n_head", "Did you mean model.attention.n_heads?"),
    ("model.atention", "Did you mean model.attention?"),
    ("model.attention.position.thet", "Did you mean model.attention.position.theta?"),
    ("model.final_norm.epsilon", "Did you mean"),
    ("steps", "Did you mean train.steps?"),
    ("train.n_layers", "Did you mean model.n_layers?"),
    ("data.file", "Did you mean data.files?"),
    ("model.ffn.n_experts", "does not exist for this kind of model.ffn. It belongs to model.ffn.kind=moe."),
    ("qqqqqq", "A config knows: about, data, model, out, task, train, tune."),
]


@pytest.mark.parametrize(("path", "answer"), UNKNOWN)
def test_an_unknown_key_is_answered_with_the_nearest_one(path, answer):
    position = {"kind": "rope"} if "position" in path else None
    raw = with_key(path, 8)
    if position:
        raw = with_key("model.attention.position", {"kind": "rope", "thet": 8})
    text = refused(raw)
    assert text.startswith(f"{path} does not exist")
    if path not in ("train.learning_rate", "model.final_norm.epsilon"):
        assert answer in text


def test_an_unknown_key_is_told_before_the_missing_key_that_it_explains():
    raw = {**RECIPE, "model": {**RECIPE["model"], "attention": {"n_head": 8}}}
    assert refused(raw) == "model.attention.n_head does not exist. Did you mean model.attention.n_heads?"


def test_a_missing_key_is_named_with_its_path():
    raw = {**RECIPE, "train": {"batch_size": 4}}
    assert refused(raw) == "train.steps is missing: it has no default. Set train.steps=…"
    raw = {**RECIPE, "model": {**RECIPE["model"], "attention": {}}}
    assert refused(raw) == "model.attention.n_heads is missing: it has no default. Set model.attention.n_heads=…"


def test_blocks_are_named_and_never_numbered():
    blocks = {"local": {}, "global": {"attention": {"n_head": 3}}}
    raw = {**RECIPE, "model": {**RECIPE["model"], "blocks": blocks}}
    assert refused(raw).startswith(
        "model.blocks.global.attention.n_head does not exist. Did you mean model.blocks.global"
    )
    everywhere = {**RECIPE["model"], "attention": {"n_heads": 4, "bais": 1}, "blocks": {"local": {}, "global": {}}}
    assert refused({**RECIPE, "model": everywhere}).startswith(
        "model.attention.bais does not exist. Did you mean model."
    )


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("train.steps", 1.5, "train.steps=1.5: input should be a valid integer, got a number with a fractional part"),
        ("train.steps", True, "train.steps=true: needs a number"),
        ("model.attention.window", False, "model.attention.window=false: needs a number"),
        ("train.steps", -1, "train.steps=-1: input should be greater than or equal to 0"),
        ("train.betas", 0.9, "train.betas=0.9: it takes 2 values, and this is 1. Write train.betas=0.9,0.95."),
        ("train.betas", [0.8], "train.betas=0.8: it takes 2 values, and this is 1. Write train.betas=0.9,0.95."),
        ("train.betas", [1, 2, 3], "train.betas=1,2,3: it takes 2 values, and this is 3. Write train.betas=0.9,0.95."),
        ("train", 5, "train=5: needs a table of keys, for example train.steps=…"),
        ("model", 5, "model=5: needs a table of keys, for example model.preset=…"),
        ("model.ffn", 5, "model.ffn=5: needs a kind (plain, gated, moe) or a table"),
        ("model.ffn", {"d_ff": 3}, "model.ffn needs a kind: plain, gated, moe"),
        ("model.ffn", "moo", "model.ffn='moo' does not exist. Did you mean moe?"),
        ("model.attention.position", "ropee", "model.attention.position='ropee' does not exist. Did you mean rope?"),
        ("model.norm", [], "model.norm=[]: needs a kind (rms, layer, none) or a table"),
        ("model.attention.score", "mine", "model.attention.score='mine' does not exist. There are no built-in kinds."),
        ("model.encoder", 5, "model.encoder=5: needs a table of keys, for example model.encoder.n_layers=…"),
        ("data.packing", "tight", "data.packing='tight': input should be 'whole' or 'stream'"),
        ("train.lr", float("inf"), "train.lr=inf: input should be a finite number"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_shown_with_its_path_and_what_is_needed(path, value, text):
    assert refused(with_key(path, value)) == text


def test_a_refusal_in_python_is_the_same_line():
    assert refused({"kind": "gated"}, GatedConfig) == "d_ff is missing: it has no default. Set d_ff=…"
    with pytest.raises(ConfigError, match=r"^d_ff is missing"):
        GatedConfig.model_validate({})
    assert refused({"n_head": 1}, ModelConfig) == "n_head does not exist. Did you mean attention.n_heads?"


def test_a_value_that_a_part_of_ones_own_refuses_keeps_its_path():
    class Even(Part):
        n: int = Field(ge=0)

    class Outer(Part):
        even: Even

    assert refused({"even": {"n": -2}}, Outer) == "even.n=-2: input should be greater than or equal to 0"


def test_a_base_class_with_a_kind_means_the_class_of_that_kind():
    config = ModelConfig(**RECIPE["model"], norm=NormConfig(kind="rms"))
    assert config.blocks[0].norm == RMSNormConfig()
    with pytest.raises(ConfigError, match=r"^norm='rmsnorm' does not exist\. Did you mean rms\?"):
        ModelConfig(**RECIPE["model"], norm=NormConfig(kind="rmsnorm"))
    with pytest.raises(ConfigError, match=r"^ffn='' does not exist\."):
        ModelConfig(**{**RECIPE["model"], "ffn": FFNConfig(kind="")})


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.floats(-2, 2), st.sampled_from(["", "none", "rope", "moe", "a,b"])
)
WORDS = st.sampled_from(
    [
        "model",
        "data",
        "train",
        "attention",
        "ffn",
        "norm",
        "cross",
        "encoder",
        "blocks",
        "pattern",
        "position",
        "scaling",
    ]
    + [
        "kind",
        "n_heads",
        "d_model",
        "score",
        "parts",
        "preset",
        "n_layers",
        "d_ff",
        "final_norm",
        "qk_norm",
        "a",
        "files",
    ]
)
JUNK = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(WORDS, inner, max_size=4))
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=4), JUNK), min_size=1, max_size=3))
def test_no_junk_gives_anything_but_a_config_or_one_clear_line(changes):
    raw = RECIPE
    for words, value in changes:
        raw = junked(raw, words, value)
    text = "" if (error := error_of(raw)) is None else str(error)
    assert "\n" not in text
    assert ".0." not in text


def error_of(raw):
    try:
        Recipe(**raw)
    except ConfigError as error:
        return error
    return None


def junked(table, words, value):
    table = table if isinstance(table, dict) else {}
    return {**table, words[0]: value if len(words) == 1 else junked(table.get(words[0]), words[1:], value)}
