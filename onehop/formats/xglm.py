"""XGLM as Hugging Face folders: arXiv:2112.10668. No torch."""

from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Key
from onehop.formats.layout import Family
from onehop.formats.table import Drop, Move

BODY = "model."
_L = f"{BODY}layers.{{i}}."


XGLM = Family(
    name="xglm",
    title="Hugging Face XGLM",
    architecture="XGLMForCausalLM",
    structure={
        **classic.STRUCTURE,
        "norm.eps": 1e-5,
        "final_norm.eps": 1e-5,
        "attention.position.kind": "none",
        "attention.bias": True,
        "attention.bias_out": True,
        "ffn.bias": True,
        "embed.position": "sinusoidal",
        "embed.position_offset": 2,
        "embed.waves": "fairseq",
    },
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("num_layers", "n_layers"),
        Key("attention_heads", "attention.n_heads"),
        Key("ffn_dim", "ffn.d_ff", default=4096),
        classic.activation("activation_function", "gelu"),
        Key("max_position_embeddings", "max_len", default=2048),
        classic.root_scale(default=True, places=("embed.scale",)),
        Key("dropout", ("dropout.residual", "dropout.embed"), default=0.1),
        Key("attention_dropout", "dropout.attention", default=0.1),
        Key("init_std", "init_std", default=0.02),
        kin.tie(default=True),
        Harmless("layerdrop activation_dropout", "training only"),
    ),
    tensors=(
        Move(f"{BODY}embed_tokens.weight", "embed.tokens.weight"),
        *classic.four_maps(f"{_L}self_attn."),
        *classic.mlp(f"{_L}fc1", f"{_L}fc2"),
        *classic.pre_norms(f"{_L}self_attn_layer_norm", f"{_L}final_layer_norm"),
        *kin.final_norm(f"{BODY}layer_norm"),
        *classic.head(of=f"{BODY}embed_tokens.weight"),
        Drop(f"{BODY}embed_positions.weights", "the table of waves of old files: computed from the config"),
    ),
    limits=classic.heads_fill,
    aliases={"num_attention_heads": "attention_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers"},
    prefix=BODY,
)
