"""A config.json, of whatever age and with whatever left out, means here what their own class makes of it."""

import json

import pytest

from onehop.base.errors import CheckpointError
from onehop.formats import FAMILIES, read_config
from onehop.formats.keys import COMMON_ROWS
from tests.parity.theirs import transformers

# Nothing but the shape: all else is what their class takes.
FEW = {
    "vocab_size": 97, "hidden_size": 256, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 32,
}  # fmt: skip
COMMON = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
}  # fmt: skip
# Keys as the releases have them; the longest lists are shortened.
PUBLISHED = {
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "Qwen2.5-7B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False, "use_mrope": False,
        "use_sliding_window": False, "vocab_size": 152064,
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    },
    "Phi-3-mini-128k": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.25] * 48, "type": "longrope"},
        "tie_word_embeddings": False, "vocab_size": 32064,
    },
    "Phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0,
        "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
        "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
        "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        "tie_word_embeddings": True, "vocab_size": 200064,
    },
    "gemma-2b": {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": False, "head_dim": 256,
        "hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048, "intermediate_size": 16384,
        "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 256000,
    },
    "gemma-2-27b": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False, "head_dim": 128,
        "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608,
        "intermediate_size": 36864, "max_position_embeddings": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 46, "num_key_value_heads": 16, "pad_token_id": 0, "query_pre_attn_scalar": 144,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
        "vocab_size": 256000,
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
        "attn_logit_softcapping": None, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
    },
    "gemma-3-270m, before rope_parameters": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "_sliding_window_pattern": 6,
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None,
        "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": False, "vocab_size": 262144,
    },
    "gemma-3-4b, its text": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    },
    "OLMo-1.7-7B": {
        "architectures": ["OlmoForCausalLM"], "model_type": "olmo", "attention_bias": False, "clip_qkv": 8.0,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 1,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 50304,
    },
    "OLMo-2-1124-7B": {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "granite-3.1-2b": {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": False,
        "attention_dropout": 0.1, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True, "vocab_size": 49155,
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
        "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004,
        "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0,
        "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256,
    },
    "starcoder2-3b": {
        "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "activation_function": "gelu",
        "attention_softmax_in_fp32": True, "embedding_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default", "norm_epsilon": 1e-05,
        "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    },
    "stablelm-2-12b": {
        "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_act": "silu",
        "hidden_dropout": 0.0, "hidden_size": 5120, "intermediate_size": 13824, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.25, "qk_layernorm": True, "rope_scaling": None,
        "rope_theta": 10000, "tie_word_embeddings": False, "use_parallel_residual": True, "use_qkv_bias": False,
        "vocab_size": 100352,
    },
    "command-r-plus": {
        "architectures": ["CohereForCausalLM"], "model_type": "cohere", "attention_bias": False,
        "hidden_act": "silu", "hidden_size": 12288, "intermediate_size": 33792, "layer_norm_eps": 1e-05,
        "logit_scale": 0.8333333333333334, "max_position_embeddings": 8192, "model_max_length": 131072,
        "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0,
        "pretraining_tp": 1, "rope_theta": 75000000.0, "use_qk_norm": True, "vocab_size": 256000,
    },
}  # fmt: skip
REFUSED = {
    "window switched off": (
        {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 3}, "sliding_window is missing or switched off"
    ),
    "layers that do not add up": ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "a list of 3 values"),
    "an unknown kind of layer": (
        {"model_type": "qwen3", "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "layer_types has 'linear_attention', which is not known",
    ),
    "no number of layers": ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
    "windows from nowhere": ({"model_type": "qwen2", "max_window_layers": "x"}, "max_window_layers='x' should be a"),
    "an unknown key": ({"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 1}}, "is unknown in a"),
    "a scaling that a layout lacks": (
        {"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 4.0}}, "this layout has default or longrope"
    ),
    "both directions": ({"model_type": "gemma", "use_bidirectional_attention": True}, "would see the ones after it"),
    "two activations": ({"model_type": "gemma", "hidden_activation": "gelu"}, "hidden_act is what is read"),
    "a scalar of nothing": ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0 should be"),
    "one table for both kinds of layer": (
        {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}}, "should hold a table for sliding_"
    ),
    "a cap that is not applied": ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, "does not apply it"),
    "windows without a width": ({"model_type": "gemma3_text", "sliding_window": None}, "sliding_window is missing"),
    "logits divided by nothing": ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling=0 should be a"),
    "clipped to nothing": ({"model_type": "olmo", "clip_qkv": 0}, "attention.clip"),
    "windows switched off": (
        {"model_type": "smollm3", "layer_types": ["sliding_attention"] * 3, "sliding_window": 7}, "or switched off"
    ),
    "too few positions": ({"model_type": "smollm3", "no_rope_layers": [1]}, "a list of 3 values, 0 or 1"),
    "positions every zero layers": (
        {"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval=0 should be a number above 0"
    ),
    "a gated feed-forward": ({"model_type": "starcoder2", "mlp_type": "gated"}, "mlp_type='gated' cannot be honoured"),
    "heads of another width": ({"model_type": "stablelm", "head_dim": 12}, "head_dim=12 is unknown in a"),
}  # fmt: skip


def by_their_class(raw):
    """Our reading of everything that their class makes of a file."""
    name = raw["model_type"]
    config = transformers.AutoConfig.for_model(name, **{k: v for k, v in raw.items() if k != "model_type"})
    return read_config(json.loads(config.to_json_string(use_diff=False)) | {"model_type": name})


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_their_class_makes_of_it(name):
    raw = COMMON | PUBLISHED[name]
    config = read_config(raw)
    assert config == by_their_class(raw)
    assert config.d_model == raw.get("text_config", raw)["hidden_size"]


@pytest.mark.parametrize("name", sorted({raw["model_type"] for raw in PUBLISHED.values()}))
def test_absent_keys_mean_what_their_class_takes(name):
    raw = {"model_type": name, **FEW}
    assert read_config(raw) == by_their_class(raw)


@pytest.mark.parametrize("name", sorted({raw["model_type"] for raw in PUBLISHED.values()}))
def test_every_key_of_their_class_has_a_row(name):
    known = {key for row in (*COMMON_ROWS, *FAMILIES.get(name).keys) for key in row.names}
    assert transformers.AutoConfig.for_model(name).to_dict().keys() <= known


def refused(raw):
    """The words of a refusal; nothing where the config can be read."""
    try:
        read_config(raw)
    except CheckpointError as refusal:
        return str(refusal)
    return ""


JUNK = [None, "x", -1, 0, 1.5, [], {}, True, 10**9, [1], {"a": 1}, float("nan")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_junk_in_any_key_is_read_or_refused_in_one_line(name):
    raw = COMMON | PUBLISHED[name]
    for key in (*raw, "rope_parameters", "rope_scaling", "layer_types", "sliding_window"):
        for junk in JUNK:
            text = refused({**raw, key: junk})
            assert "\n" not in text
            assert len(text) < 500


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name):
    raw, text = REFUSED[name]
    with pytest.raises(CheckpointError, match=text) as refusal:
        read_config(FEW | raw)
    assert "\n" not in str(refusal.value)
