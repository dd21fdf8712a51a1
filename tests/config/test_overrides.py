"""What stands after the recipe on the command line, and flags that are really keys."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onehop.base.errors import ConfigError
from onehop.config import Recipe, spelling
from onehop.config.keys import known_keys, takes_list, takes_only_text
from onehop.config.overrides import as_layer


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("train.steps=100", 100),
        ("train.steps=1_000", 1000),
        ("train.lr=3e-4", 3e-4),
        ("train.lr = 0.5", 0.5),
        ("model.head.tied=false", False),
        ("train.betas=0.9,0.95", [0.9, 0.95]),
        ("train.betas=[0.9, 0.95]", [0.9, 0.95]),
        ("data.files=a.txt,b.txt", ["a.txt", "b.txt"]),
        ("data.files=a.txt", ["a.txt"]),
        ("data.files=1,2", ["1", "2"]),
        ('data.files="a,b.txt",c.txt', ['"a', 'b.txt"', "c.txt"]),
        ('data.files=["a,b.txt", "c.txt"]', ["a,b.txt", "c.txt"]),
        ("data.files=", []),
        ("model.pattern=local,local,global", ["local", "local", "global"]),
        ("train.sample=Once, upon a time", "Once, upon a time"),
        ('train.sample="Once\\nupon"', "Once\nupon"),
        ("train.sample=a=b", "a=b"),
        ("data.separator=\n", "\n"),
        ("train.sample=7", "7"),
        ("out=2024-01-01", "2024-01-01"),
        ("data.tokenizer=true", "true"),
        ("model.attention.position=rope", "rope"),
        ('model.attention.position={kind="rope", theta=1e6}', {"kind": "rope", "theta": 1e6}),
        ("model.blocks.local.attention.window=64", 64),
        ("model.attention.window=none", "none"),
    ],
)
def test_a_value_is_a_toml_literal_where_it_is_one_a_list_where_a_list_is_wanted_and_else_text(word, value):
    layer = as_layer([word])
    for step in word.partition("=")[0].strip().split("."):
        layer = layer[step]
    assert layer == value
    assert type(layer) is type(value)


def test_a_quoted_item_of_a_list_may_not_hold_a_comma_but_may_be_quoted():
    assert as_layer(["data.files='a b.txt',c"]) == {"data": {"files": ["a b.txt", "c"]}}


def test_words_and_a_dict_say_the_same():
    words = as_layer(["train.steps=100", "data.files=a,b", "model.ffn.kind=moe"])
    assert words == as_layer({"train.steps": 100, "data": {"files": ["a", "b"]}, "model.ffn": {"kind": "moe"}})


def test_of_two_values_for_one_key_the_later_wins():
    assert as_layer(["train.steps=1", "train.steps=2"]) == {"train": {"steps": 2}}


def test_the_order_of_different_keys_does_not_matter():
    words = ["model.ffn=moe", "model.ffn.n_experts=8", "model.blocks.a.norm=rms", "model.norm=layer"]
    layers = [as_layer(order) for order in itertools.permutations(words)]
    assert all(layer == layers[0] for layer in layers)
    assert layers[0]["model"]["ffn"] == {"kind": "moe", "n_experts": 8}


@pytest.mark.parametrize("words", [["train=5", "train.steps=3"], ["train.steps=3", "train=5"]])
def test_a_value_and_a_table_for_one_key_contradict(words):
    with pytest.raises(ConfigError, match=r"contradict.*Leave one out"):
        as_layer(words)


@pytest.mark.parametrize("word", ["train.steps", "=5", "a..b=1", ".a=1", ""])
def test_a_word_that_is_no_override_is_refused_with_an_example(word):
    with pytest.raises(ConfigError, match=r"is not an override: write key=value, for example train\.steps=10$"):
        as_layer([word])


def test_a_flag_among_the_overrides_is_answered_with_the_key():
    with pytest.raises(ConfigError, match=r"^--steps=10 is not an option here: write train\.steps=10$"):
        as_layer(["--steps=10"])


@pytest.mark.parametrize(
    ("flag", "value", "answer"),
    [
        ("--steps", "10", "write train.steps=10"),
        ("--steps=10", None, "write train.steps=10"),
        ("--batch-size", "4", "write train.batch_size=4"),
        ("--train.steps", "10", "write train.steps=10"),
        ("--seed", "1", "write train.seed=1"),
        ("--n-kv-heads", "2", "write model.attention.n_kv_heads=2"),
        ("--files", "a.txt", "write data.files=a.txt"),
        ("--out", "x", "write out=x"),
        ("--lr", None, "write train.lr=…"),
        ("--nonsense", "1", None),
        ("--blocks", "1", "write model.blocks=1"),
    ],
)
def test_a_flag_that_is_really_a_key_is_spelt(flag, value, answer):
    assert spelling(flag, value) == answer


@given(st.text())
def test_no_text_breaks_the_reading_of_a_value(text):
    keys = ("train.steps", "train.betas", "data.files", "out", "model.ffn", "no.such.key")
    assert as_layer([f"{key}={text}" for key in keys]).keys() == {"train", "data", "out", "model", "no"}


def test_every_key_of_a_recipe_is_known_once_with_what_may_stand_there():
    keys = known_keys(Recipe)
    assert {"out", "model.preset", "model.attention.n_heads", "model.blocks.NAME.ffn.n_experts", "train.betas"} <= set(
        keys
    )
    assert {"model.encoder.attention.window", "model.attention.position.scaling.beta_fast"} <= set(keys)
    assert not [key for key in keys if "kind.kind" in key or key.startswith("model.encoder.encoder")]
    lists = {key for key, fields in keys.items() if any(map(takes_list, fields)) and "NAME" not in key}
    assert {"data.files", "model.pattern", "model.parts", "train.betas"} <= lists
    assert "model.blocks" not in lists
    assert all(takes_only_text(field) for key in ("out", "data.corpus", "train.device") for field in keys[key])
