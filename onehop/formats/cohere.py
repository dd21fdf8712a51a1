"""Command R and Aya 23 as Hugging Face folders: Cohere 2024, arXiv:2405.15032. No torch."""

from dataclasses import replace

from onehop.formats import kin
from onehop.formats.keys import Harmless, Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move, Op, Row, Site, turned


def _queries(site: Site) -> int:
    return site.block.attention.n_heads


def _keys(site: Site) -> int:
    return site.block.attention.n_kv_heads


# Rotary pairs are neighbours in these files: whatever has a place for each dim of q or of k is turned.
_TURNED: dict[str, Op] = {
    "wq.": turned(_queries),
    "q_heads.": turned(_queries),
    "wk.": turned(_keys),
    "k_heads.": turned(_keys),
}


def _turn(row: Row) -> Row:
    assert isinstance(row, Move)
    assert isinstance(row.ours, str)
    op = next((op for name, op in _TURNED.items() if row.ours.startswith(f"layers.{{i}}.attention.{name}")), row.op)
    return replace(row, op=op)


COHERE = Family(
    name="cohere",
    title="Hugging Face Cohere",
    architecture="CohereForCausalLM",
    structure={
        **kin.STRUCTURE,
        "norm.kind": "layer",
        "norm.bias": False,
        "final_norm.kind": "layer",
        "final_norm.bias": False,
        "parallel": "one norm",
    },
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=None),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        *kin.GATED_KEYS,
        kin.qk_norm_of_heads("use_qk_norm"),
        Key("logit_scale", "head.scale", default=0.0625),
        kin.tie(default=True),
        Rope(length=8192, theta=500000.0),
        Harmless("pretraining_tp", "how many devices shared a product in training: the product is the same"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.block_norm("model.layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
        *(_turn(row) for row in (*kin.ATTENTION, *kin.QK_NORMS)),
        *kin.GATED,
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
