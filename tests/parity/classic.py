"""The families before Llama: LayerNorm, plain feed-forward layers, learned positions, ALiBi, partial rotary."""

import torch

from tests.parity.theirs import Case, V

GPT = {"vocab_size": V, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
       "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
NEOX = {"vocab_size": V, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
SHORT = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
RW = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}  # Falcon's ALiBi form
HEADS = {4: 32, 6: 36, 12: 48}  # and the model's width
OLD_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def gpt(**keys):
    return Case("gpt2", {**GPT, **keys}, base=False)


def neox(**keys):
    return Case("gpt_neox", {**NEOX, **keys}, base=False, old_keys=OLD_NEOX)


def bloom(heads, **keys):
    return Case("bloom", {**SHORT, "n_layer": 3, "n_head": heads, "hidden_size": 32, **keys}, base=False)


def falcon(**keys):
    """With ALiBi their plain attention adds it twice; through PyTorch's kernel it is added once."""
    keys = {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, **SHORT, **keys}
    return Case("falcon", keys, base=False, attention="sdpa" if keys.get("alibi") else "eager")


def gptj(**keys):
    return Case("gptj", {**GPT, "n_embd": 40, "rotary_dim": 6, **keys}, base=False)


def opt(**keys):
    keys = {"hidden_size": 36, "ffn_dim": 44, "num_hidden_layers": 3, "num_attention_heads": 4,
            "max_position_embeddings": 64, **SHORT, **keys}  # fmt: skip
    return Case("opt", keys, base=False)


def mpt(heads, **keys):
    return Case("mpt", {**SHORT, "n_layers": 3, "n_heads": heads, "d_model": 32, "max_seq_len": 64, **keys}, base=False)


def bigcode(**keys):
    return Case("gpt_bigcode", {**GPT, **keys}, base=False)


def xglm(**keys):
    """In float32: their mask's value overflows in float64."""
    keys = {"d_model": 32, "ffn_dim": 44, "num_layers": 3, "attention_heads": 4, "max_position_embeddings": 64, **SHORT,
            **keys}  # fmt: skip
    return Case("xglm", keys, base=False, dtype=torch.float32)


def rope(part, theta=10000.0, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": part, **more}


CASES = {
    "gpt2": gpt(),
    "gpt2, untied": gpt(tie_word_embeddings=False),
    "gpt2, 3 odd heads": gpt(n_embd=33, n_head=3, n_inner=17, activation_function="relu"),
    "gpt2, scores unscaled": gpt(scale_attn_weights=False, layer_norm_epsilon=0.1, activation_function="silu"),
    "gpt_neox": neox(),
    "gpt_neox, sequential": neox(use_parallel_residual=False, layer_norm_eps=0.1),
    "gpt_neox, tied": neox(tie_word_embeddings=True),
    "gpt_neox, whole heads": neox(rope_parameters=rope(1.0, 500.0), hidden_act="gelu_new"),
    "gpt_neox, without biases": neox(attention_bias=False, rope_parameters=rope(0.6)),
    "bloom, 4 heads": bloom(4),
    "bloom, 6 heads, untied": bloom(6, hidden_size=36, tie_word_embeddings=False, layer_norm_epsilon=0.1),
    "bloom, 12 heads": bloom(12, hidden_size=48),
    "falcon, one kv head": falcon(),
    "falcon, heads of their own, sequential": falcon(multi_query=False, parallel_attn=False, bias=True),
    "falcon, one kv head, sequential, untied": falcon(parallel_attn=False, tie_word_embeddings=False),
    "falcon, new": falcon(**NEW, activation="relu", ffn_hidden_size=44),
    "falcon, new, one norm": falcon(**NEW, num_ln_in_parallel_attn=1, bias=True),
    "falcon, new, theta": falcon(
        new_decoder_architecture=True, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
    ),
    **{f"falcon, alibi, {n} heads": falcon(**RW, num_attention_heads=n, hidden_size=h) for n, h in HEADS.items()},
    "falcon, alibi, one kv head": falcon(**{**RW, "multi_query": True}, num_attention_heads=12, hidden_size=48),
    "falcon, alibi, new": falcon(
        **{**RW, "new_decoder_architecture": True, "parallel_attn": True},
        num_kv_heads=2,
        num_attention_heads=6,
        hidden_size=36,
        num_ln_in_parallel_attn=2,
    ),
    "gptj": gptj(),
    "gptj, whole heads, tied": gptj(rotary_dim=10, tie_word_embeddings=True),
    "gptj, others": gptj(rotary_dim=2, n_inner=23, activation_function="silu", layer_norm_epsilon=0.1),
    "opt": opt(),
    "opt, norms after": opt(do_layer_norm_before=False),
    "opt, narrow tokens, norms after": opt(word_embed_proj_dim=20, do_layer_norm_before=False),
    "opt, narrow tokens, untied": opt(word_embed_proj_dim=20, tie_word_embeddings=False),
    "opt, no last norm, untied": opt(_remove_final_layer_norm=True, tie_word_embeddings=False),
    "opt, without biases": opt(enable_bias=False, activation_function="gelu"),
    "opt, norms without weights": opt(layer_norm_elementwise_affine=False),
    "mpt, 4 heads": mpt(4),
    "mpt, 6 heads, untied": mpt(6, d_model=36, tie_word_embeddings=False, layer_norm_epsilon=0.1),
    "mpt, 12 heads, scale": mpt(12, d_model=48, attn_config={"softmax_scale": 0.7}),
    "gpt_bigcode": bigcode(),
    "gpt_bigcode, heads of their own": bigcode(multi_query=False, n_embd=33, n_head=3, n_inner=17),
    "gpt_bigcode, untied": bigcode(tie_word_embeddings=False, scale_attn_weights=False, activation_function="gelu"),
    "xglm": xglm(),
    "xglm, unscaled, untied": xglm(scale_embedding=False, tie_word_embeddings=False, activation_function="relu"),
    "gpt_neox, linear": neox(rope_parameters=rope(0.6, kind="linear", factor=3.0)),
}
