"""Families with experts."""

from tests.parity.theirs import Case

MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3 = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
QWEN2 = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
GPT_OSS = {"head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 10, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
}  # fmt: skip
GROUPS = {"n_routed_experts": 12, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2}
CASES = {
    "mixtral": Case("mixtral", MIXTRAL),
    "mixtral, window, top 1, odd heads": Case(
        "mixtral", {**MIXTRAL, "sliding_window": 5, "num_experts_per_tok": 1, "head_dim": 10, "num_key_value_heads": 1}
    ),
    "mixtral, top 3 of 5, tied, relu, no balance": Case(
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "tie_word_embeddings": True, "hidden_act": "relu",
         "router_aux_loss_coef": 0.0, "rms_norm_eps": 1e-3},
    ),
    "qwen3 with experts": Case("qwen3_moe", QWEN3),
    "qwen3 with experts, renormalised, one dense layer": Case(
        "qwen3_moe", {**QWEN3, "norm_topk_prob": True, "mlp_only_layers": [1], "num_experts_per_tok": 3}
    ),
    "qwen3 with experts in every other layer, window, biases": Case(
        "qwen3_moe",
        {**QWEN3, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 6, "attention_bias": True,
         "num_hidden_layers": 4, "mlp_only_layers": [3], "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen2 with experts": Case("qwen2_moe", QWEN2),
    "qwen2 with experts, every other layer with a window, one dense": Case(
        "qwen2_moe",
        {**QWEN2, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3, "num_hidden_layers": 5,
         "mlp_only_layers": [2, 3], "norm_topk_prob": True, "num_experts_per_tok": 3},
    ),
    "qwen2 with experts, without biases, top 1, tied": Case(
        "qwen2_moe",
        {**QWEN2, "qkv_bias": False, "num_experts_per_tok": 1, "tie_word_embeddings": True, "num_key_value_heads": 1,
         "decoder_sparse_step": 2, "hidden_act": "gelu"},
    ),
    "olmoe": Case("olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "olmoe, renormalised, top 1, biases, tied": Case(
        "olmoe",
        {"num_experts": 3, "num_experts_per_tok": 1, "norm_topk_prob": True, "attention_bias": True,
         "tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
    ),
    "olmoe, clipped behind the norm": Case(
        "olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 0.6, "attention_bias": True}
    ),
    "gpt-oss": Case("gpt_oss", {**GPT_OSS, "sliding_window": 6}),
    "gpt-oss, top 1, tight clamp, another scaling, tied": Case(
        "gpt_oss",
        {**GPT_OSS, "num_experts_per_tok": 1, "sliding_window": 5, "layer_types": ["full_attention"] * 3,
         "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e4}, "swiglu_limit": 0.5,
         "swiglu_alpha": 1.1, "tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "gpt-oss, no biases in attention, top 3, odd heads, windows twice as often": Case(
        "gpt_oss",
        {**GPT_OSS, "attention_bias": False, "num_experts_per_tok": 3, "head_dim": 10, "sliding_window": 9,
         "num_hidden_layers": 4, "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
         "full_attention"], "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0,
         "original_max_position_embeddings": 16, "rope_theta": 1e4, "truncate": False}},
    ),
    "deepseek v2": Case("deepseek_v2", {**LATENT, "first_k_dense_replace": 1}),
    "deepseek v2, groups, queries from the input, yarn that warms the scores": Case(
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
         "n_routed_experts": 12, "num_experts_per_tok": 4, "routed_scaling_factor": 1.7, "n_shared_experts": 1,
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.7,
         "mscale_all_dim": 0.9, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 2.0}},
    ),
    "deepseek v2, biases, odd widths, tied, another eps": Case(
        "deepseek_v2",
        {**LATENT, "attention_bias": True, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 9,
         "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "num_experts_per_tok": 1, "first_k_dense_replace": 2},
    ),
    "deepseek v3": Case("deepseek_v3", {**LATENT, **GROUPS, "first_k_dense_replace": 1}),
    "deepseek v3, not renormalised, one group, linear, no dense layer": Case(
        "deepseek_v3",
        {**LATENT, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
         "norm_topk_prob": False, "routed_scaling_factor": 1.3, "first_k_dense_replace": 0, "q_lora_rank": None,
         "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    ),
    "deepseek v3, all layers dense, yarn that warms the scores": Case(
        "deepseek_v3",
        {**LATENT, **GROUPS, "first_k_dense_replace": 3, "attention_bias": True, "rope_parameters": {
         "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
         "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}},
    ),
}  # fmt: skip
