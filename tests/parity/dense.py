"""Families with one feed-forward in each layer whose blocks differ from Llama's."""

from tests.parity.theirs import Case

WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

CASES = {
    "qwen2": Case("qwen2"),
    "qwen2, windows from layer 1": Case("qwen2", {**WINDOWS, "max_window_layers": 1, "head_dim": 10}),
    "qwen2, windows listed, tied": Case("qwen2", {**WINDOWS, "layer_types": MIXED, "tie_word_embeddings": True}),
    "qwen2, windows switched off": Case("qwen2", {"sliding_window": 7, "max_window_layers": 0}),
    "qwen3": Case("qwen3", {"head_dim": 16}),
    "qwen3, windows, biases, one kv head": Case(
        "qwen3",
        {**WINDOWS, "max_window_layers": 2, "head_dim": 6, "num_key_value_heads": 1, "attention_bias": True,
         "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
    ),
}  # fmt: skip
