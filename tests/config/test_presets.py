"""Named shapes: their sizes, counted from the config, are the published models'."""

import copy

import pytest

import onehop
from onehop.base.errors import ConfigError
from onehop.config import ModelConfig
from onehop.config.presets import PRESETS
from onehop.cost.parameters import count
from onehop.cost.weights import weights

# Radford et al. 2019 (its release), Touvron et al. 2023, Grattafiori et al. 2024, Jiang et al. 2023 and 2024, Gemma
# Team 2025, all as their released weights have them.
SIZES = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-3-270m": 268_098_176,
}


def n_weights(name):
    """Of the names and shapes that `tests/cost/test_parameters.py` holds to the built model's."""
    return count(weights(onehop.presets[name])).total


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_published_model_has_its_published_number_of_weights(name, size):
    assert n_weights(name) == size


def test_the_original_transformer_has_about_the_65_million_weights_of_its_table():
    """Table 3 of the paper rounds, and its vocabulary is "about 37000"."""
    assert n_weights("original-transformer-base") == 63_045_632


def test_tiny_shapes_are_below_a_million_weights():
    tiny = [name for name in onehop.presets if name.startswith("tiny")]
    assert sorted(tiny) == ["tiny", "tiny-encoder-decoder", "tiny-gpt2", "tiny-moe"]
    for name in tiny:
        assert n_weights(name) < 1_000_000


def test_the_mapping_gives_names_and_finished_configs():
    assert list(onehop.presets) == list(PRESETS)
    assert len(onehop.presets) == len(PRESETS)
    assert "gpt2" in onehop.presets
    assert all(isinstance(config, ModelConfig) for config in onehop.presets.values())


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"^preset 'llama-3-80b' does not exist\. Did you mean llama-3-8b\?$"):
        onehop.presets["llama-3-80b"]
    with pytest.raises(ConfigError, match=r"^preset='gpt-2' does not exist\. Did you mean gpt2\?$"):
        ModelConfig(preset="gpt-2")


def test_a_preset_is_the_start_of_a_config_in_python_too():
    config = ModelConfig(preset="gpt2", n_layers=2, attention={"window": 64})
    assert (config.n_layers, config.d_model) == (2, 768)
    assert config.blocks[0].attention.window == 64
    assert config.blocks[0].attention.n_heads == 12


def test_building_a_preset_twice_gives_equal_configs_that_share_nothing():
    one, two = onehop.presets["gemma-3-270m"], onehop.presets["gemma-3-270m"]
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two, onehop.presets["gpt2"]}) == 2


def test_five_local_layers_stand_to_one_global_one():
    layers = [block.name for block in onehop.presets["gemma-3-270m"].layers()]
    assert layers == (["local"] * 5 + ["global"]) * 3
    windows = [block.attention.window for block in onehop.presets["gemma-3-270m"].layers()]
    assert windows[:6] == [512] * 5 + [None]


def test_building_configs_leaves_the_tables_alone():
    before = copy.deepcopy(dict(PRESETS))
    for name in PRESETS:
        ModelConfig(preset=name, attention={"n_heads": 4, "d_head": 16, "n_kv_heads": 2})
        _ = onehop.presets[name]
    assert dict(PRESETS) == before
