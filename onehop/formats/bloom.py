"""BLOOM as Hugging Face folders: arXiv:2211.05100. No torch."""

from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.table import GROUPED_QKV, Move

BODY = "transformer."
_H = f"{BODY}h.{{i}}."

BLOOM = Family(
    name="bloom",
    title="Hugging Face BLOOM",
    architecture="BloomForCausalLM",
    structure={
        **classic.STRUCTURE,
        "attention.position.kind": "alibi",
        "attention.bias": True,
        "attention.bias_out": True,
        "ffn.bias": True,
        "ffn.activation": "gelu_tanh",
        "embed.norm.kind": "layer",
    },
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "attention.n_heads"),
        classic.inner(None, "hidden_size"),
        Key("seq_length", "max_len", default=2048),
        classic.eps("layer_norm_epsilon", "embed.norm.eps"),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("hidden_dropout", "dropout.residual", default=0.0),
        Key("initializer_range", "init_std", default=0.02),
        kin.tie(default=True),
        Only("apply_residual_connection_post_layernorm", (False,), "the residual stream is what was not normalised"),
        Harmless("pretraining_tp slow_but_exact", "in how many pieces a product is summed"),
        Harmless("attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion", "how its own kernels ran"),
        Harmless("skip_bias_add skip_bias_add_qkv", "where its own kernels added the biases"),
        Harmless("offset_alibi unk_token_id", "nothing reads them"),
    ),
    tensors=(
        Move(f"{BODY}word_embeddings.weight", "embed.tokens.weight"),
        Move(f"{BODY}word_embeddings_layernorm.weight", "embed.norm.weight"),
        Move(f"{BODY}word_embeddings_layernorm.bias", "embed.norm.bias"),
        *classic.pre_norms(f"{_H}input_layernorm", f"{_H}post_attention_layernorm"),
        *classic.fused(f"{_H}self_attention.query_key_value", GROUPED_QKV),
        *classic.linear(f"{_H}self_attention.dense", "layers.{i}.attention.wo"),
        *classic.mlp(f"{_H}mlp.dense_h_to_4h", f"{_H}mlp.dense_4h_to_h"),
        *kin.final_norm(f"{BODY}ln_f"),
        *classic.head(of=f"{BODY}word_embeddings.weight"),
    ),
    limits=classic.four_times,
    aliases={**classic.SHORT_NAMES, "n_embed": "hidden_size"},
    prefix=BODY,
)
