"""config.json files as they were published before today's names, key by key."""

import pytest

from onehop.config import AlibiConfig, RopeConfig
from onehop.formats import read_config

SUMMARY = {"summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
           "summary_type": "cls_index", "summary_use_proj": True}  # fmt: skip
TASK = {"text-generation": {"do_sample": True, "max_length": 50}}
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, **SUMMARY, "task_specific_params": TASK, "vocab_size": 50257,
}  # fmt: skip
PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip
BLOOM = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomModel"], "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "dtype": "float32",
    "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24,
    "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "skip_bias_add": True,
    "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
FALCON = {
    "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False,
    "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False,
    "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "parallel_attn": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
}  # fmt: skip
NEW = {"hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_kv_heads": 8}
RW = {"alibi": True, "bias": True, "hidden_size": 2048, "multi_query": False, "num_attention_heads": 32,
      "parallel_attn": False}  # fmt: skip
GPTJ = {
    "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "bos_token_id": 50256,
    "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": False, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
    "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64, "scale_attn_weights": True, **SUMMARY,
    "task_specific_params": TASK, "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer",
    "transformers_version": "4.18.0.dev0", "use_cache": True, "vocab_size": 50400,
}  # fmt: skip
OPT = {
    "_name_or_path": "opt-350m", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
    "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
    "do_layer_norm_before": False, "dropout": 0.1, "enable_bias": True, "eos_token_id": 2, "ffn_dim": 4096,
    "hidden_size": 1024, "init_std": 0.02, "layer_norm_elementwise_affine": True, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 16, "num_hidden_layers": 24,
    "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.20.0.dev0",
    "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 512,
}  # fmt: skip
ATTENTION = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "clip_qkv": None,
             "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "prefix_lm": False, "qk_ln": False,
             "softmax_scale": None}  # fmt: skip
INIT = {"emb_init_std": None, "fan_mode": "fan_in", "init_nonlinearity": "relu", "name": "kaiming_normal_"}
MPT = {
    "architectures": ["MPTForCausalLM"], "attn_config": ATTENTION, "auto_map": {"AutoConfig": "configuration_mpt.X"},
    "d_model": 4096, "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": INIT,
    "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "model_type": "mpt",
    "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0,
    "vocab_size": 50432,
}  # fmt: skip
STARCODER = {
    "activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"], "attention_softmax_in_fp32": True,
    "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0, "inference_runner": 0,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "max_batch_size": None, "max_sequence_length": None,
    "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
    "n_positions": 8192, "pad_key_length": True, "pre_allocate_kv_cache": False, "resid_pdrop": 0.1,
    "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, **SUMMARY, "use_cache": True,
    "validate_runner_input": True, "vocab_size": 49152,
}  # fmt: skip
XGLM = {
    "activation_dropout": 0.0, "activation_function": "gelu", "architectures": ["XGLMForCausalLM"],
    "attention_dropout": 0.1, "attention_heads": 16, "bos_token_id": 0, "d_model": 2048, "decoder_start_token_id": 2,
    "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 8192, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "xglm", "num_layers": 24, "pad_token_id": 1,
    "scale_embedding": True, "transformers_version": "4.16.0.dev0", "use_cache": True, "vocab_size": 256008,
}  # fmt: skip

# name -> file; layers, width, heads, kv heads, inner width; whether the head is tied; how attention and ffn stand
FILES = {
    "gpt2": (GPT2, (12, 768, 12, 12, 3072), True, "no"),
    "pythia-70m": (PYTHIA, (6, 512, 8, 8, 2048), False, "two norms"),
    "bloom-560m": (BLOOM, (24, 1024, 16, 16, 4096), True, "no"),
    "falcon-7b": (FALCON, (32, 4544, 71, 1, 18176), True, "one norm"),
    "falcon-40b": ({**FALCON, **NEW, "num_hidden_layers": 60}, (60, 8192, 128, 8, 32768), True, "two norms"),
    "falcon-rw-1b": ({**FALCON, **RW, "num_hidden_layers": 24}, (24, 2048, 32, 32, 8192), True, "no"),
    "gpt-j-6b": (GPTJ, (28, 4096, 16, 16, 16384), False, "one norm"),
    "opt-350m": (OPT, (24, 1024, 16, 16, 4096), True, "no"),
    "mpt-7b": (MPT, (32, 4096, 32, 32, 16384), True, "no"),
    "starcoder": (STARCODER, (40, 6144, 48, 1, 24576), True, "no"),
    "xglm-1.7b": (XGLM, (24, 2048, 16, 16, 8192), True, "no"),
}
POSITIONS = {
    "pythia-70m": RopeConfig(width=16),
    "bloom-560m": AlibiConfig(),
    "falcon-7b": RopeConfig(),
    "falcon-40b": RopeConfig(),
    "falcon-rw-1b": AlibiConfig(scaled=True, rounded=True),
    "gpt-j-6b": RopeConfig(width=64),
    "mpt-7b": AlibiConfig(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_is_read_with_every_key_it_has(name):
    raw, shape, tied, parallel = FILES[name]
    config = read_config(raw)
    block = config.blocks[0]
    a = block.attention
    assert (config.n_layers, config.d_model, a.n_heads, a.n_kv_heads, block.ffn.d_ff) == shape
    assert (config.head.tied, block.parallel) == (tied, parallel)
    if name in POSITIONS:
        assert a.position == POSITIONS[name]
    else:
        assert a.position.kind == "none"
        assert config.embed.position != "none"


def test_the_opt_of_350m_is_narrow_at_both_ends_and_normalises_after_each_sum():
    config = read_config(OPT)
    assert (config.embed.width, config.embed.position_offset) == (512, 2)
    assert (config.blocks[0].norm_in, config.blocks[0].norm_out, config.final_norm.kind) == (False, "outside", "none")
