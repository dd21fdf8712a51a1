"""GPT-NeoX and Pythia as Hugging Face folders: arXiv:2204.06745, 2304.01373. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import GROUPED_QKV, Drop, Move

BODY = "gpt_neox."
_LAYER = f"{BODY}layers.{{i}}."


def read_residual(raw: Json) -> Json:
    """Side by side with two norms, or one after the other."""
    return {"parallel": "no" if raw.get("use_parallel_residual") is False else "two norms"}


def write_residual(config: ModelConfig) -> Json:
    """Whether they are side by side."""
    return {"use_parallel_residual": next(config.layers()).parallel == "two norms"}


GPT_NEOX = Family(
    name="gpt_neox",
    title="Hugging Face GPT-NeoX",
    architecture="GPTNeoXForCausalLM",
    structure={**classic.STRUCTURE, "attention.position.kind": "rope", "ffn.bias": True},
    keys=(
        *kin.SHAPE,
        Key("num_attention_heads", "attention.n_heads"),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=True),
        Key("intermediate_size", "ffn.d_ff", default=24576),
        classic.activation("hidden_act", "gelu"),
        Key("hidden_dropout", ("dropout.residual", "dropout.embed"), default=0.0),
        classic.eps("layer_norm_eps"),
        Keys("use_parallel_residual", read_residual, write_residual),
        Rope(length=2048, part=0.25, old_theta="rotary_emb_base", old_part="rotary_pct"),
        kin.tie(default=False),
        Harmless("classifier_dropout", "for other heads"),
    ),
    tensors=(
        Move(f"{BODY}embed_in.weight", "embed.tokens.weight"),
        *classic.pre_norms(f"{_LAYER}input_layernorm", f"{_LAYER}post_attention_layernorm"),
        *classic.fused(f"{_LAYER}attention.query_key_value", GROUPED_QKV),
        *classic.linear(f"{_LAYER}attention.dense", "layers.{i}.attention.wo", bias=kin.biased_out),
        *classic.mlp(f"{_LAYER}mlp.dense_h_to_4h", f"{_LAYER}mlp.dense_4h_to_h"),
        *kin.final_norm(f"{BODY}final_layer_norm"),
        *classic.head(of=f"{BODY}embed_in.weight", name="embed_out"),
        *classic.masks(f"{_LAYER}attention"),
        Drop(f"{_LAYER}attention.rotary_emb.inv_freq", "rotary frequencies of old files: computed from the config"),
    ),
    limits=classic.heads_fill,
    prefix=BODY,
)
