"""Families with one feed-forward in each layer whose blocks differ from Llama's."""

from tests.parity.theirs import Case

WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
SHORT = [1.0, 1.1, 1.3]
LONG = [2.0, 3.0, 5.0]


def longrope(original, **keys):
    """Texts here have 9 to 40 tokens: beyond 8 the long factors count, up to 40 the short ones."""
    table = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": SHORT, "long_factor": LONG, **keys}
    return {"original_max_position_embeddings": original, "rope_parameters": table}


CASES = {
    "qwen2": Case("qwen2"),
    "qwen2, windows from layer 1": Case("qwen2", {**WINDOWS, "max_window_layers": 1, "head_dim": 10}),
    "qwen2, windows listed, tied": Case("qwen2", {**WINDOWS, "layer_types": MIXED, "tie_word_embeddings": True,
                                                         "rms_norm_eps": 1e-2}),
    "qwen2, windows switched off": Case("qwen2", {"sliding_window": 7, "max_window_layers": 0}),
    "qwen3": Case("qwen3", {"head_dim": 16}),
    "qwen3, windows, biases, one kv head": Case(
        "qwen3",
        {**WINDOWS, "max_window_layers": 2, "head_dim": 6, "num_key_value_heads": 1, "attention_bias": True,
         "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
    ),
    "qwen3, stretched by YaRN": Case(
        "qwen3", {"head_dim": 16, "rope_parameters": {"rope_type": "yarn", "factor": 3.0, "rope_theta": 1e4,
                                                      "original_max_position_embeddings": 16}}
    ),
    "phi3": Case("phi3"),
    "phi3, window, tied, one kv head": Case(
        "phi3", {"sliding_window": 5, "num_key_value_heads": 1, "tie_word_embeddings": True, "head_dim": 10,
                 "rms_norm_eps": 1e-2}
    ),
    "phi3, partial rotary": Case(
        "phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.75}}
    ),
    "phi3, longrope beyond its length, partial rotary": Case("phi3", longrope(8, partial_rotary_factor=0.75)),
    "phi3, longrope within its length, warmed as given": Case(
        "phi3", longrope(40, partial_rotary_factor=0.75, attention_factor=1.3)
    ),
    "gemma": Case("gemma", {"head_dim": 16}),
    "gemma, biases, untied, one kv head": Case(
        "gemma", {"head_dim": 6, "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": False,
                  "hidden_act": "silu", "rms_norm_eps": 1e-2}
    ),
    "gemma2, capped": Case(
        "gemma2", {"head_dim": 16, "sliding_window": 7, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                   "query_pre_attn_scalar": 24}
    ),
    "gemma2, uncapped, layers listed": Case(
        "gemma2", {"head_dim": 10, "sliding_window": 5, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                   "query_pre_attn_scalar": 10, "attention_bias": True, "tie_word_embeddings": False,
                   "rms_norm_eps": 1e-2, "layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    ),
    "gemma3_text": Case(
        "gemma3_text", {"head_dim": 16, "sliding_window": 7, "num_hidden_layers": 6, "query_pre_attn_scalar": 24}
    ),
    "gemma3_text, scaled, other bases": Case(
        "gemma3_text",
        {"head_dim": 10, "sliding_window": 5, "layer_types": [*MIXED, "full_attention"], "num_hidden_layers": 4,
         "query_pre_attn_scalar": 10, "attention_bias": True, "tie_word_embeddings": False,
         "final_logit_softcapping": 3.0, "num_key_value_heads": 1, "rms_norm_eps": 1e-2,
         "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e3},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}},
    ),
    "gemma3_text, no window": Case(
        "gemma3_text", {"head_dim": 16, "layer_types": ["full_attention"] * 3, "sliding_window": 5}
    ),
    "olmo": Case("olmo"),
    "olmo, clipped, biases, tied": Case(
        "olmo", {"clip_qkv": 0.4, "attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
    "olmo2": Case("olmo2"),
    "olmo2, biases, one kv head, odd heads": Case(
        "olmo2", {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 6, "rms_norm_eps": 1e-2,
                  "tie_word_embeddings": True}
    ),
    "granite": Case("granite"),
    "granite, every multiplier": Case(
        "granite", {"embedding_multiplier": 12.0, "logits_scaling": 0.7, "residual_multiplier": 0.22,
                    "attention_multiplier": 0.3, "rms_norm_eps": 1.0, "attention_bias": True, "mlp_bias": True,
                    "tie_word_embeddings": True}
    ),
    "smollm3": Case("smollm3", {"num_hidden_layers": 5}),
    "smollm3, windows and positions mixed": Case(
        "smollm3", {**WINDOWS, "no_rope_layers": [0, 1, 0, 1], "num_hidden_layers": 4, "attention_bias": True,
                    "layer_types": [*MIXED, "sliding_attention"], "mlp_bias": True, "tie_word_embeddings": False,
                    "rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}
    ),
    "smollm3, windows where there are no positions": Case("smollm3", {**WINDOWS, "no_rope_layer_interval": 2}),
    "smollm3, no positions at all": Case("smollm3", {"no_rope_layers": [0, 0, 0]}),
    "starcoder2": Case("starcoder2"),
    "starcoder2, window, no biases, untied": Case(
        "starcoder2", {"sliding_window": 5, "use_bias": False, "tie_word_embeddings": False, "norm_epsilon": 1e-2,
                       "num_key_value_heads": 1, "head_dim": 10}
    ),
    "stablelm": Case("stablelm", {"num_attention_heads": 2}),
    "stablelm, normalised heads, biases": Case(
        "stablelm", {"qk_layernorm": True, "use_qkv_bias": True, "num_key_value_heads": 1, "layer_norm_eps": 1e-2,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.75}}
    ),
    "stablelm, parallel, tied, whole heads turn": Case(
        "stablelm", {"use_parallel_residual": True, "tie_word_embeddings": True,
                     "rope_parameters": {"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 1.0}}
    ),
    "cohere": Case("cohere", {"logit_scale": 0.4}),
    "cohere, normalised heads, biases, untied": Case(
        "cohere", {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.7, "num_key_value_heads": 1,
                   "head_dim": 10, "layer_norm_eps": 1e-2, "tie_word_embeddings": False,
                   "rope_parameters": {"rope_type": "linear", "factor": 3.0}}
    ),
}  # fmt: skip
