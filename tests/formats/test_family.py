"""A family is found by its model_type, or refused with what is known."""

import pytest

from onehop.base.errors import CheckpointError, ConfigError
from onehop.config.named import presets
from onehop.formats import FAMILIES, family_for, family_of, read_config
from onehop.formats.layout import lost
from tests.small_models import CONFIGS, MOE, decoder, encoder_decoder


def test_every_family_is_found_by_its_own_name():
    for name in FAMILIES:
        assert family_for({"model_type": name}) is FAMILIES.get(name)
        assert FAMILIES.get(name).name == name


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({}, r"names no model_type, so its layout is unknown\. Known: .*llama"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "lama"}, r"models of the type 'lama' cannot be read\. Did you mean llama\?"),
        ({"model_type": "rwkv6"}, r"models of the type 'rwkv6' cannot be read\. Known: .*llama"),
        ({"model_type": "qwen3_5"}, r"'qwen3_5' cannot be read: that would take linear attention, .*Known: .*qwen3_vl"),
        ({"model_type": "mamba"}, r"'mamba' cannot be read: that would take a recurrent state"),
    ],
)
def test_an_unknown_family_is_refused_with_what_is_known(raw, text):
    with pytest.raises(CheckpointError, match=text):
        family_for(raw)


def test_the_first_family_that_can_hold_a_config_is_taken():
    assert family_of(decoder()).name == "llama"


def test_a_config_that_no_family_can_hold_is_refused_by_what_stands_in_the_way():
    with pytest.raises(ConfigError, match=r"attention\.sees=prefix cannot be written as a"):
        family_of(decoder(attention={"sees": "prefix"}))


def test_a_refusal_speaks_of_the_family_that_is_most_alike():
    gpt = {
        "embed": {"position": "learned"},
        "norm": "layer",
        "final_norm": "layer",
        "ffn": {"kind": "plain", "d_ff": 64, "bias": True},
    }
    with pytest.raises(ConfigError, match=r"attention\.window=3 cannot be written as a Hugging Face (GPT|OPT)"):
        family_of(decoder("none", attention={"window": 3, "n_kv_heads": 4, "bias": True, "bias_out": True}, **gpt))


EVERY = {
    **CONFIGS,
    "encoder-decoder": encoder_decoder(),
    "layers without positions": decoder(blocks={"a": {"attention": {"position": "none"}}, "b": {}}),
    "layers of two feed-forwards": decoder(blocks={"a": {"ffn": MOE}, "b": {}}),
    "heads with norms of their own": decoder(attention={"qk_norm": {"norm": "layer", "own_weights": True}}),
    "no norms": decoder(norm="none", norm_in=False),
    "parallel": decoder(parallel="two norms"),
    "post-norm": decoder(norm_out="outside"),
    "a scale without an exact inverse": decoder(head={"scale": 1 / 49}),
    "a scale whose inverse is infinite": decoder(head={"scale": 1e-310}),
    "scores that nearly vanish": decoder(attention={"scale": 1e-9}),
}


def written(family, config):
    """Their config.json, or the words of a refusal."""
    try:
        return family.write_config(config)
    except ConfigError as refusal:
        return str(refusal)


@pytest.mark.parametrize("name", FAMILIES.names())
def test_any_config_is_written_and_comes_back_equal_or_is_refused_in_words(name):
    for config in (*EVERY.values(), *presets.values()):
        raw = written(FAMILIES.get(name), config)
        assert "\n" not in raw if isinstance(raw, str) else not list(lost(config, read_config(raw)))


def test_a_scale_is_written_as_a_divisor_whose_inverse_it_is():
    raw = FAMILIES.get("granite").write_config(EVERY["a scale without an exact inverse"])
    assert 1 / raw["logits_scaling"] == 1 / 49
