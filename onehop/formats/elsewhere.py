"""Models that are known and cannot be read, and what they would need. No torch."""

from collections.abc import Mapping

STATE = "a recurrent state in place of attention"
MIXED = "recurrent or convolutional layers between those of attention"
LINEAR = "linear attention, whose past is a matrix"
NEEDED: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv7", "xlstm"), STATE),
    **dict.fromkeys(
        ("jamba", "zamba", "zamba2", "bamba", "nemotron_h", "granitemoehybrid", "falcon_h1", "lfm2", "lfm2_moe",
         "recurrent_gemma"),
        MIXED,
    ),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "kimi_linear", "minimax"), LINEAR
    ),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified"),
        "embeddings for each layer, and layers that use the keys of others",
    ),
    **dict.fromkeys(("llama4", "llama4_text"), "attention in chunks, and temperatures that grow with the position"),
    "longt5": "attention to the neighbourhood and to summaries",
    "deberta-v2": "attention to positions as well as to contents",
    "reformer": "attention by hashing",
    "bigbird_pegasus": "attention to random blocks",
    **dict.fromkeys(("vit", "clip", "siglip"), "a model of images"),
    **dict.fromkeys(("whisper", "wav2vec2"), "a model of sound"),
}  # fmt: skip
