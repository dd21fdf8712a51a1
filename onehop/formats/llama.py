"""Llama 1 to 3.3 as Hugging Face folders: arXiv:2302.13971, 2307.09288, 2407.21783. No torch."""

from onehop.formats import kin
from onehop.formats.keys import Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

KEYS = (
    *kin.SHAPE,
    *kin.HEADS,
    Key("head_dim", "attention.d_head", default=None),
    Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
    *kin.GATED_KEYS,
    Key("mlp_bias", "ffn.bias", default=False),
    kin.rms_eps(),
    kin.tie(default=False),
    Rope(length=2048),
    Harmless("pretraining_tp", "how many devices shared a product in training: the product is the same"),
    Only("rope_interleaved", (False,), "rotary pairs are (j, j + width/2) in this layout"),
)

TENSORS = (*kin.EMBEDDING, *kin.PRE_NORMS, *kin.ATTENTION, *kin.GATED, *kin.final_norm(), *kin.HEAD, *kin.FREQUENCIES)

LLAMA = Family(
    name="llama",
    title="Hugging Face Llama",
    architecture="LlamaForCausalLM",
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "ffn.kind": "gated",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=KEYS,
    tensors=TENSORS,
    limits=kin.whole_heads("Hugging Face Llama"),
)
