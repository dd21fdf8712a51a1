"""Keys of families with experts: which layers have them, names old and new, refusals."""

import pytest

from onehop.base.errors import CheckpointError
from onehop.config.ffn import MoEConfig
from onehop.formats import read_config, write_config

QWEN3 = {
    "model_type": "qwen3_moe", "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}  # fmt: skip


def with_experts(**keys):
    return [isinstance(block.ffn, MoEConfig) for block in read_config({**QWEN3, **keys}).layers()]


def test_every_so_many_layers_have_experts_but_for_those_that_are_listed():
    assert with_experts() == [True] * 6
    assert with_experts(decoder_sparse_step=2) == [False, True] * 3
    assert with_experts(decoder_sparse_step=3, mlp_only_layers=[2]) == [False] * 5 + [True]
    assert with_experts(mlp_only_layers=[0, 5]) == [False, True, True, True, True, False]
    assert with_experts(num_experts=0) == [False] * 6


def test_a_key_is_read_under_either_of_its_names():
    new = {key: value for key, value in QWEN3.items() if key != "num_experts"} | {"num_local_experts": 6}
    assert read_config(new) == read_config(QWEN3) == read_config({**QWEN3, "num_local_experts": 6})


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"num_local_experts": 5}, "says num_experts twice and differently, once as num_local_experts: 6, 5"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0 should be a whole number from 1 on"),
        ({"num_experts": "many"}, "num_experts='many' should be a whole number"),
        ({"mlp_only_layers": 3}, "mlp_only_layers=3 should be a list"),
        ({"router_aux_loss_coef": "much"}, "router_aux_loss_coef='much' should be a number above 0"),
        ({"num_experts_per_tok": 7}, "n_active=7 is more than n_experts=6"),
        ({"num_shared_experts": 1}, "num_shared_experts=1 is unknown"),
    ],
)
def test_what_cannot_be_honoured_is_refused(keys, text):
    with pytest.raises(CheckpointError, match=text):
        read_config({**QWEN3, **keys})


def test_the_weight_of_the_balance_survives_and_none_is_none():
    for weight in (0.0, 0.25):
        config = read_config({**QWEN3, "router_aux_loss_coef": weight})
        assert write_config(config)["router_aux_loss_coef"] == weight
        assert config.blocks[0].ffn.balance == ("loss" if weight else "none")


def windows(**keys):
    few = {"model_type": "qwen2_moe", "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 4}
    config = read_config({**few, "num_attention_heads": 16, "sliding_window": 9, **keys})
    return [block.attention.window for block in config.layers()]


def test_layers_with_windows_and_layers_with_experts_are_counted_apart():
    assert windows() == [None] * 4
    assert windows(use_sliding_window=True) == [9, None, 9, None]
    assert windows(use_sliding_window=True, max_window_layers=2) == [9, None, None, None]
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert windows(use_sliding_window=True, layer_types=types, decoder_sparse_step=2) == [None, 9, 9, None]
    with pytest.raises(CheckpointError, match=r"use_sliding_window is false\. Set it to true, or remove layer"):
        windows(layer_types=types)


def test_without_a_word_about_scaling_the_default_of_the_class_is_meant():
    few = {"model_type": "gpt_oss", "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2}
    few |= {"num_attention_heads": 16, "intermediate_size": 48}
    bare = read_config(few).blocks[0].attention.position
    assert (bare.theta, bare.scaling.kind, bare.scaling.factor, bare.scaling.truncate) == (
        150000.0,
        "yarn",
        32.0,
        False,
    )
    assert read_config({**few, "rope_theta": 5e4}).blocks[0].attention.position.scaling == bare.scaling
    for plain in ({"rope_parameters": {"rope_type": "default"}}, {"rope_scaling": {"rope_type": "default"}}):
        assert read_config({**few, **plain}).blocks[0].attention.position.scaling is None
