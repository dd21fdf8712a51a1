"""GPT-2 as Hugging Face folders: Radford et al. 2019, Language Models are Unsupervised Multitask Learners. No torch."""

from onehop.formats import classic, kin
from onehop.formats.keys import Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.table import TRANSPOSE, Move, columns, rows

BODY = "transformer."
_H = f"{BODY}h.{{i}}."

GPT2 = Family(
    name="gpt2",
    title="Hugging Face GPT-2",
    architecture="GPT2LMHeadModel",
    structure={
        **classic.STRUCTURE,
        **classic.LEARNED,
        "attention.bias": True,
        "attention.bias_out": True,
        "ffn.bias": True,
    },
    keys=(
        *classic.gpt_keys("gelu_new", dropout=0.1),
        Key("n_positions", "max_len", default=1024),
        classic.UNSCALED,
        Only("scale_attn_by_inverse_layer_idx", (False,), "one scale serves all layers here"),
        Harmless("reorder_and_upcast_attn", "in which precision scores are computed"),
        kin.tie(default=True),
    ),
    tensors=(
        Move(f"{BODY}wte.weight", "embed.tokens.weight"),
        Move(f"{BODY}wpe.weight", "embed.positions.weight"),
        *classic.pre_norms(f"{_H}ln_1", f"{_H}ln_2"),
        *classic.fused(f"{_H}attn.c_attn", columns(classic.qkv_sizes), bias_op=rows(classic.qkv_sizes)),
        *classic.linear(f"{_H}attn.c_proj", "layers.{i}.attention.wo", op=TRANSPOSE),
        *classic.mlp(f"{_H}mlp.c_fc", f"{_H}mlp.c_proj", op=TRANSPOSE),
        *kin.final_norm(f"{BODY}ln_f"),
        *classic.head(of=f"{BODY}wte.weight"),
        *classic.masks(f"{_H}attn"),
    ),
    limits=classic.heads_fill,
    aliases=classic.GPT_NAMES,
    prefix=BODY,
)
