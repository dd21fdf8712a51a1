"""The Llama layout holds what Llama can say, comes back equal, and refuses by name what it cannot say."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings

from onehop.base.errors import CheckpointError, ConfigError
from onehop.config import ModelConfig
from onehop.config.attention import SCORES, ScoreConfig
from onehop.config.named import presets
from onehop.formats import read_config
from onehop.formats.layout import leaves
from onehop.formats.llama import LLAMA
from tests.golden import CONFIG
from tests.llamas import llamas
from tests.small_models import CONFIGS, DYNAMIC, MOE, YARN, decoder, encoder_decoder


def llama(**own):
    """A config that the layout can hold."""
    return decoder(**{"dropout": {"attention": 0.1}, **own})


@settings(max_examples=60, deadline=None)
@given(llamas())
def test_a_config_that_is_written_reads_back_equal(config):
    assert read_config(json.loads(json.dumps(LLAMA.write_config(config)))) == config


@pytest.mark.parametrize("name", [name for name in presets if name.startswith("llama")])
def test_the_presets_of_the_family_can_be_written(name):
    assert read_config(LLAMA.write_config(presets[name])) == presets[name]


def test_a_published_config_is_read_completely():
    """Llama 3.1's keys as its release has them."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    raw = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "rope_scaling": {**scaling, "original_max_position_embeddings": 8192}, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 128256,
    }  # fmt: skip
    config = read_config(raw)
    attention = config.blocks[0].attention
    assert (config.d_model, config.n_layers, config.max_len, config.vocab_size) == (4096, 32, 131072, 128256)
    assert (attention.n_heads, attention.n_kv_heads, attention.d_head) == (32, 8, 128)
    assert (config.blocks[0].ffn.d_ff, config.blocks[0].norm.eps, config.head.tied) == (14336, 1e-5, False)
    written = LLAMA.write_config(config)
    assert {k: written[k] for k in written.keys() & raw.keys()} == {k: raw[k] for k in written.keys() & raw.keys()}


def test_keys_that_are_absent_mean_what_their_code_takes():
    few = {k: CONFIG[k] for k in ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    config = read_config({**few, "num_attention_heads": 4})
    attention = config.blocks[0].attention
    assert (attention.n_kv_heads, attention.d_head, attention.bias, attention.bias_out) == (4, 4, False, False)
    assert (config.blocks[0].norm.eps, config.final_norm.eps, config.max_len) == (1e-6, 1e-6, 2048)
    assert (config.head.tied, config.blocks[0].ffn.activation, config.init_std) == (False, "silu", 0.02)


class Near(ScoreConfig):
    kind: str = "near"


@pytest.fixture
def own_score(monkeypatch):
    monkeypatch.setattr(SCORES, "_rows", dict(SCORES._rows))
    monkeypatch.setattr(SCORES, "_own", dict(SCORES._own))
    SCORES.add("near", Near)


BEYOND = {
    "attention.softcap=50.0": {"attention": {"softcap": 50.0}},
    "attention.window=3": {"attention": {"window": 3}},
    "attention.sinks=true": {"attention": {"sinks": True}},
    "attention.scale=0.3": {"attention": {"scale": 0.3}},
    "attention.sees=all": {"attention": {"sees": "all"}},
    "attention.bias_out=false": {"attention": {"bias": True}},
    "attention.qk_norm.norm=rms": {"attention": {"qk_norm": {"norm": "rms"}}},
    "attention.position=alibi": {"position": "alibi"},
    "attention.position=none": {"position": "none"},
    "attention.position.width=2": {"attention": {"position": {"width": 2}}},
    "ffn=plain": {"ffn": {"kind": "plain", "d_ff": 8}},
    "ffn=moe": {"ffn": MOE},
    "norm=layer": {"norm": "layer"},
    "norm.offset=1": {"norm": {"kind": "rms", "offset": 1}},
    "norm.affine=false": {"norm": {"kind": "rms", "affine": False}},
    "final_norm=none": {"final_norm": "none"},
    "final_norm.eps=0.001": {"final_norm": {"kind": "rms", "eps": 1e-3}},
    "norm_in=false": {"norm_in": False, "norm_out": "outside"},
    "norm_out=inside": {"norm_out": "inside"},
    "parallel=one norm": {"parallel": "one norm"},
    "residual_scale=0.5": {"residual_scale": 0.5},
    "embed.position=learned": {"embed": {"position": "learned"}},
    "embed.scale=4.0": {"embed": {"scale": 4.0}},
    "embed.norm=rms": {"embed": {"norm": "rms"}},
    "head.bias=true": {"head": {"bias": True}},
    "head.scale=0.5": {"head": {"scale": 0.5}},
    "head.softcap=30.0": {"head": {"softcap": 30.0}},
    "max_len=64": {"scaling": DYNAMIC},
    "attention.position.scaling.mscale=0.5": {"scaling": {**YARN, "mscale": 0.5}},
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_the_layout_cannot_say_is_refused_by_name(what):
    text = rf"^{re.escape(what)} cannot be written as a Hugging Face Llama\. Save a onehop folder instead"
    with pytest.raises(ConfigError, match=text):
        LLAMA.write_config(llama(**BEYOND[what]))


def test_a_part_of_ones_own_is_refused_by_its_name(own_score):
    with pytest.raises(
        ConfigError, match=r"^attention\.score=near \(a part of your own\) cannot be written as a Hugging Face"
    ):
        LLAMA.write_config(llama(attention={"score": "near"}))


def test_one_layer_that_differs_is_named():
    with pytest.raises(
        ConfigError, match=r"^attention\.window=4 \(layer 0\) cannot be written as a Hugging Face Llama"
    ):
        LLAMA.write_config(CONFIGS["two kinds of layer"])


def test_what_would_not_even_read_back_is_refused_too():
    """A family whose structure leaves the feed-forward layer open, asked for experts that its keys do not know."""
    structure = {path: kind for path, kind in LLAMA.structure.items() if not path.startswith("ffn")}
    with pytest.raises(
        ConfigError, match=r"^this model cannot be written as a Hugging Face Llama: config\.json, in onehop's"
    ):
        replace(LLAMA, structure=structure).write_config(llama(ffn=MOE))


def test_an_encoder_is_refused():
    with pytest.raises(ConfigError, match="cannot be written as a Hugging Face Llama"):
        LLAMA.write_config(encoder_decoder())


def test_a_width_that_transformers_refuses_is_not_written():
    with pytest.raises(
        ConfigError, match=r"^d_model=18 must be a multiple of attention\.n_heads=4 in a Hugging Face Llama"
    ):
        LLAMA.write_config(llama(d_model=18, attention={"d_head": 4}))


def test_what_no_logit_depends_on_is_no_obstacle():
    """Dropout that only training knows, a block's name, defaults that are spelled out, equal blocks of two names."""
    plain = LLAMA.write_config(llama())
    assert (
        LLAMA.write_config(llama(dropout={"attention": 0.1, "residual": 0.2, "embed": 0.3}, parts=["mine.py"])) == plain
    )
    assert LLAMA.write_config(llama(attention={"scale": 0.5, "position": {"width": 4}})) == plain
    assert LLAMA.write_config(llama(blocks={"a": {}, "b": {}})) == plain


def test_every_field_of_a_config_is_a_leaf_that_is_compared():
    """What `leaves` does not list could be lost without a word."""
    names = {leaf.path for config in CONFIGS.values() for leaf, _ in leaves(config)}
    fields = ModelConfig.model_fields.keys() - {"blocks", "pattern", "parts", "encoder"}
    assert {name.split(".")[0] for name in names} >= fields


def test_the_tables_name_each_tensor_and_each_key_once():
    theirs = [row.theirs for row in LLAMA.tensors]
    assert len(theirs) == len(set(theirs)) + 1  # lm_head.weight: its own tensor, or a twin of the embedding
    names = [name for row in LLAMA.keys for name in row.names]
    assert len(names) == len(set(names))


def test_broken_values_are_refused_in_one_line():
    with pytest.raises(CheckpointError, match=r"in onehop's words: attention\.n_kv_heads=3 cannot share n_heads=4"):
        read_config({**CONFIG, "num_key_value_heads": 3})
    with pytest.raises(CheckpointError, match=r"config\.json: hidden_act='quick_gelu' is not known"):
        read_config({**CONFIG, "hidden_act": "quick_gelu"})
    with pytest.raises(CheckpointError, match="rope_interleaved=True cannot be honoured"):
        read_config({**CONFIG, "rope_interleaved": True})
