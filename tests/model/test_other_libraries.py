"""Architectures of seven families, built from our options, give the logits that `transformers` gives for their weights.

The weights are copied by hand here, tensor by tensor: what is compared is the model, and no table of names.
"""

import pytest
import torch

from onehop.config import ModelConfig
from onehop.model import build

transformers = pytest.importorskip("transformers")

# Both sides hold float64 weights, but theirs takes norms, angles and some sums in float32: 2^-24 of values up to 10.
CLOSE = {"atol": 1e-4, "rtol": 0}
SIZES = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 24}


def theirs(config, **options):
    """A random model of theirs in float64, its weights spread widely so that a wrong detail shows."""
    torch.manual_seed(0)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager", **options).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def ours(config, weights):
    """Our model with these weights, every one of them given."""
    model = build(
        ModelConfig(**{"vocab_size": 31, "d_model": 16, "n_layers": 3, "max_len": 64, **config}), dtype="float64"
    )
    model.load_state_dict(weights)
    return model


def layers(weights, prefix, names):
    """{their name below a layer: our name below a layer} for three layers."""
    return {f"layers.{i}.{own}": weights[f"{prefix}.{i}.{name}"] for i in range(3) for name, own in names.items()}


def with_biases(names):
    return {f"{a}.{leaf}": f"{b}.{leaf}" for a, b in names.items() for leaf in ("weight", "bias")}


def weights_of(names):
    return {f"{a}.weight": f"{b}.weight" for a, b in names.items()}


def split(fused, *, by_head=False, heads=4):
    """Rows of a fused projection as those of q, k and v; `by_head`: q, k and v lie together in each head."""
    if not by_head:
        return fused.chunk(3)
    parts = fused.view(heads, 3, -1, *fused.shape[1:])  # (H, 3, D, …)
    return [parts[:, i].flatten(0, 1) for i in range(3)]


def unfused(weights, prefix, name, **how):
    return {
        f"layers.{i}.attention.w{x}.{leaf}": part
        for i in range(3)
        for leaf in ("weight", "bias")
        for x, part in zip("qkv", split(weights[f"{prefix}.{i}.{name}.{leaf}"], **how), strict=True)
    }


SELF = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo"}  # fmt: skip
GATED = {"mlp.gate_proj": "ffn.w1", "mlp.up_proj": "ffn.w3", "mlp.down_proj": "ffn.w2"}


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=31, n_embd=16, n_layer=3, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = theirs(config)
    w = {k: v.T if "c_" in k and k.endswith("weight") else v for k, v in model.state_dict().items()}  # Conv1D
    names = {"ln_1": "attention_norm", "ln_2": "ffn_norm", "attn.c_proj": "attention.wo", "mlp.c_fc": "ffn.w1",
             "mlp.c_proj": "ffn.w2"}  # fmt: skip
    same = {
        **layers(w, "transformer.h", with_biases(names)),
        **unfused(w, "transformer.h", "attn.c_attn"),
        "embed.tokens.weight": w["transformer.wte.weight"],
        "embed.positions.weight": w["transformer.wpe.weight"],
        "final_norm.weight": w["transformer.ln_f.weight"],
        "final_norm.bias": w["transformer.ln_f.bias"],
    }
    own = {
        "max_len": 32, "embed": {"position": "learned"}, "norm": "layer", "final_norm": "layer",
        "attention": {"n_heads": 4, "bias": True, "bias_out": True, "position": "none"},
        "ffn": {"kind": "plain", "d_ff": 64, "activation": "gelu_tanh", "bias": True},
    }  # fmt: skip
    return model, ours(own, same)


def gpt_neox():
    config = transformers.GPTNeoXConfig(
        **SIZES, intermediate_size=24, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    model = theirs(config)
    w = model.state_dict()
    names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
             "attention.dense": "attention.wo", "mlp.dense_h_to_4h": "ffn.w1",
             "mlp.dense_4h_to_h": "ffn.w2"}  # fmt: skip
    same = {
        **layers(w, "gpt_neox.layers", with_biases(names)),
        **unfused(w, "gpt_neox.layers", "attention.query_key_value", by_head=True),
        "embed.tokens.weight": w["gpt_neox.embed_in.weight"],
        "final_norm.weight": w["gpt_neox.final_layer_norm.weight"],
        "final_norm.bias": w["gpt_neox.final_layer_norm.bias"],
        "head.projection.weight": w["lm_head.weight"],
    }
    own = {
        "norm": "layer", "final_norm": "layer", "parallel": "two norms", "head": {"tied": False},
        "attention": {"n_heads": 4, "bias": True, "bias_out": True,
                      "position": {"kind": "rope", "theta": 500.0, "width": 2}},
        "ffn": {"kind": "plain", "d_ff": 24, "activation": "gelu", "bias": True},
    }  # fmt: skip
    return model, ours(own, same)


def bloom():
    """ALiBi on 6 heads: a number that is no power of two."""
    config = transformers.BloomConfig(
        vocab_size=31, hidden_size=24, n_layer=3, n_head=6, bos_token_id=0, eos_token_id=0
    )
    model = theirs(config)
    w = model.state_dict()
    names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
             "self_attention.dense": "attention.wo", "mlp.dense_h_to_4h": "ffn.w1",
             "mlp.dense_4h_to_h": "ffn.w2"}  # fmt: skip
    same = {
        **layers(w, "transformer.h", with_biases(names)),
        **unfused(w, "transformer.h", "self_attention.query_key_value", by_head=True, heads=6),
        "embed.tokens.weight": w["transformer.word_embeddings.weight"],
        "embed.norm.weight": w["transformer.word_embeddings_layernorm.weight"],
        "embed.norm.bias": w["transformer.word_embeddings_layernorm.bias"],
        "final_norm.weight": w["transformer.ln_f.weight"],
        "final_norm.bias": w["transformer.ln_f.bias"],
    }
    own = {
        "d_model": 24, "embed": {"norm": "layer"}, "norm": "layer", "final_norm": "layer",
        "attention": {"n_heads": 6, "bias": True, "bias_out": True, "position": "alibi"},
        "ffn": {"kind": "plain", "d_ff": 96, "activation": "gelu_tanh", "bias": True},
    }  # fmt: skip
    return model, ours(own, same)


def olmo2():
    """Norms on what sublayers give, none on what they take; q and k normalised over all heads together."""
    model = theirs(transformers.Olmo2Config(**SIZES, **GROUPED, eos_token_id=0, rms_norm_eps=1e-5))
    w = model.state_dict()
    names = {**SELF, **GATED, "self_attn.q_norm": "attention.q_heads.norm",
             "self_attn.k_norm": "attention.k_heads.norm", "post_attention_layernorm": "inside.attention",
             "post_feedforward_layernorm": "inside.ffn"}  # fmt: skip
    same = {
        **layers(w, "model.layers", weights_of(names)),
        "embed.tokens.weight": w["model.embed_tokens.weight"],
        "final_norm.weight": w["model.norm.weight"],
        "head.projection.weight": w["lm_head.weight"],
    }
    norm = {"kind": "rms", "eps": 1e-5}
    own = {
        "norm": norm, "final_norm": norm, "norm_in": False, "norm_out": "inside", "head": {"tied": False},
        "attention": {"n_heads": 4, "n_kv_heads": 2, "qk_norm": {"norm": norm, "span": "all"}},
        "ffn": {"kind": "gated", "d_ff": 24},
    }  # fmt: skip
    return model, ours(own, same)


def gemma2():
    """Sandwich norms of 1 + weight, softcaps on scores and logits, windows in every other layer, its own scale."""
    model = theirs(transformers.Gemma2Config(
        **SIZES, **GROUPED, head_dim=8, sliding_window=3, query_pre_attn_scalar=11, attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0, eos_token_id=0, bos_token_id=0,
    ))  # fmt: skip
    w = model.state_dict()
    names = {**SELF, **GATED, "input_layernorm": "attention_norm", "post_attention_layernorm": "inside.attention",
             "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "inside.ffn"}  # fmt: skip
    same = {
        **layers(w, "model.layers", weights_of(names)),
        "embed.tokens.weight": w["model.embed_tokens.weight"],
        "final_norm.weight": w["model.norm.weight"],
    }
    norm = {"kind": "rms", "eps": 1e-6, "offset": 1}
    own = {
        "norm": norm, "final_norm": norm, "norm_out": "inside", "head": {"softcap": 5.0}, "embed": {"scale": 4.0},
        "attention": {"n_heads": 4, "n_kv_heads": 2, "d_head": 8, "scale": 11**-0.5, "softcap": 2.0},
        "ffn": {"kind": "gated", "d_ff": 24, "activation": "gelu_tanh"},
        "blocks": {"local": {"attention": {"window": 3}}, "global": {}}, "pattern": ["local", "global"],
    }  # fmt: skip
    return model, ours(own, same)


def mixtral():
    config = transformers.MixtralConfig(**SIZES, **GROUPED, num_local_experts=4, num_experts_per_tok=2)
    model = theirs(config, experts_implementation="eager")
    w = model.state_dict()
    names = {**weights_of(SELF), **weights_of({"input_layernorm": "attention_norm", "mlp.gate": "ffn.router",
             "post_attention_layernorm": "ffn_norm"}), "mlp.experts.down_proj": "ffn.w2"}  # fmt: skip
    same = {
        **layers(w, "model.layers", names),
        "embed.tokens.weight": w["model.embed_tokens.weight"],
        "final_norm.weight": w["model.norm.weight"],
        "head.projection.weight": w["lm_head.weight"],
    }
    for i in range(3):
        gate, up = w[f"model.layers.{i}.mlp.experts.gate_up_proj"].chunk(2, dim=1)
        same |= {f"layers.{i}.ffn.w1": gate, f"layers.{i}.ffn.w3": up}
    norm = {"kind": "rms", "eps": 1e-5}
    own = {
        "norm": norm, "final_norm": norm, "head": {"tied": False},
        "attention": {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope", "theta": 1e6}},
        "ffn": {"kind": "moe", "d_ff": 24, "n_experts": 4, "n_active": 2},
    }  # fmt: skip
    return model, ours(own, same)


def t5():
    """An encoder-decoder without a scale on its scores, whose layers share one table of biases per stack."""
    model = theirs(transformers.T5Config(
        vocab_size=31, d_model=16, d_kv=4, d_ff=24, num_layers=3, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
        decoder_start_token_id=0,
    ))  # fmt: skip
    w = model.state_dict()

    def stack(name, cross):
        at = f"{name}.block"
        names = {f"layer.0.SelfAttention.{x}": f"attention.w{x}" for x in "qkvo"} | {
            "layer.0.layer_norm": "attention_norm"
        }
        if cross:
            names |= {f"layer.1.EncDecAttention.{x}": f"cross.w{x}" for x in "qkvo"} | {
                "layer.1.layer_norm": "cross_norm"
            }
        n = 2 if cross else 1
        names |= {f"layer.{n}.layer_norm": "ffn_norm", f"layer.{n}.DenseReluDense.wi_0": "ffn.w1",
                  f"layer.{n}.DenseReluDense.wi_1": "ffn.w3", f"layer.{n}.DenseReluDense.wo": "ffn.w2"}  # fmt: skip
        table = w[f"{at}.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        return {**layers(w, at, weights_of(names)), "schemes.0.table": table,
                "final_norm.weight": w[f"{name}.final_layer_norm.weight"]}  # fmt: skip

    same = {
        **stack("decoder", True),
        **{f"encoder.{name}": tensor for name, tensor in stack("encoder", False).items()},
        "embed.tokens.weight": w["shared.weight"],
        "head.projection.weight": w["lm_head.weight"],
    }
    attention = {"n_heads": 4, "scale": 1.0, "position": {"kind": "t5", "n_buckets": 8, "max_distance": 12}}
    block = {"ffn": {"kind": "gated", "d_ff": 24, "activation": "gelu_tanh"}}
    own = {
        **block, "attention": attention, "cross": {"n_heads": 4, "scale": 1.0}, "head": {"tied": False},
        "encoder": {"n_layers": 3, **block, "attention": attention | {"sees": "all"}},
    }  # fmt: skip
    return model, ours(own, same)


@pytest.mark.parametrize("family", [gpt2, gpt_neox, bloom, olmo2, gemma2, mixtral, t5])
@torch.no_grad()
def test_logits_agree_on_copied_weights(family):
    model, mine = family()
    tokens = torch.randint(1, 31, (2, 20), generator=torch.Generator().manual_seed(7))
    if mine.encoder is not None:
        target = tokens.flip(0, 1)[:, :15]
        want = model(input_ids=tokens, decoder_input_ids=target).logits
        torch.testing.assert_close(mine(tokens, target), want, **CLOSE)
        mask = torch.ones_like(tokens)
        mask[0, 14:] = 0
        at = torch.arange(20).expand(2, 20).masked_fill(mask == 0, -1)
        want = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=target).logits
        torch.testing.assert_close(mine(tokens, target, source_at=at), want, **CLOSE)
    else:
        torch.testing.assert_close(mine(tokens), model(input_ids=tokens).logits, **CLOSE)
