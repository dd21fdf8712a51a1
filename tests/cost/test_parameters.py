"""The counted parameters are those of the built model, name by name, shape by shape."""

import pytest
from hypothesis import assume, given, settings

import onehop
from onehop.config import ModelConfig
from onehop.cost.parameters import count
from onehop.cost.weights import weights
from tests.cost.random_configs import configs
from tests.small_models import CONFIGS, encoder_decoder


def built(config):
    return {name: tuple(p.shape) for name, p in onehop.build(config, device="meta").named_parameters()}


def planned(config):
    return {w.name: w.shape for w in weights(config)}


@pytest.mark.parametrize("preset", onehop.presets)
def test_a_preset_has_the_parameters_of_the_built_model(preset):
    assert planned(onehop.presets[preset]) == built(onehop.presets[preset])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_small_model_has_its_parameters(name):
    assert planned(CONFIGS[name]) == built(CONFIGS[name])


@settings(max_examples=120, deadline=None)  # a model is built for each: milliseconds, but not always the same
@given(configs())
def test_a_random_config_has_the_parameters_of_the_built_model(config):
    assume(config is not None)
    assert planned(config) == built(config)


def test_a_config_from_elsewhere_gives_its_published_total():
    qwen = ModelConfig(
        vocab_size=151936, d_model=896, n_layers=24, max_len=131072,
        attention={"n_heads": 14, "n_kv_heads": 2, "bias": True}, ffn={"kind": "gated", "d_ff": 4864},
        head={"tied": True},
    )  # fmt: skip
    assert count(weights(qwen)).total == 494_032_768


def test_of_experts_a_token_meets_the_active_share():
    found = count(weights(onehop.presets["mixtral-8x7b"]))
    expert = 3 * 4096 * 14336
    assert found.active == found.total - 32 * 6 * expert == 12_879_925_248  # "12.9B active"


def test_embedding_is_what_has_a_row_for_each_id_or_position():
    found = count(weights(onehop.presets["gpt2"]))
    assert found.embedding == 50257 * 768 + 1024 * 768
    untied = count(weights(onehop.presets["llama-2-7b"]))
    assert untied.embedding == 2 * 32000 * 4096
    assert untied.non_embedding == untied.total - untied.embedding


@settings(max_examples=40, deadline=None)
@given(configs())
def test_parts_and_layers_add_up_to_the_total(config):
    assume(config is not None)
    found = count(weights(config))
    assert sum(found.by_part.values()) == found.total
    outside = sum(w.size for w in weights(config) if w.layer is None)
    assert sum(found.by_layer) + sum(found.by_encoder_layer) + outside == found.total
    assert found.active <= found.total


@pytest.mark.parametrize("preset", ["gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-3-270m"])
def test_twice_the_layers_have_twice_the_parameters_in_blocks(preset):
    config = onehop.presets[preset]
    double = ModelConfig.model_validate({**dict(config), "n_layers": 2 * config.n_layers})
    assert sum(count(weights(double)).by_layer) == 2 * sum(count(weights(config)).by_layer)


def test_an_encoder_counts_with_and_without_an_embedding_of_its_own():
    shared = count(weights(encoder_decoder()))
    own = encoder_decoder(encoder={
        "n_layers": 2, "attention": {"n_heads": 4, "position": "none", "sees": "all"},
        "ffn": {"kind": "plain", "d_ff": 24}, "embed": {"position": "sinusoidal"}, "share_embedding": False,
    })  # fmt: skip
    assert count(weights(own)).total - shared.total == 13 * 16
