"""Qwen 3 as Hugging Face folders: arXiv:2505.09388. No torch."""

from onehop.formats import kin
from onehop.formats.by_layer import LATE_WINDOWS
from onehop.formats.keys import Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

QWEN3 = Family(
    name="qwen3",
    title="Hugging Face Qwen 3",
    architecture="Qwen3ForCausalLM",
    structure={**kin.STRUCTURE, "attention.qk_norm.norm.kind": "rms", "attention.qk_norm.span": "head"},
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=32, d_head=128),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        LATE_WINDOWS,
        *kin.GATED_KEYS,
        kin.rms_eps(qk=True),
        kin.tie(default=False),
        Rope(length=32768),
    ),
    tensors=(*kin.BODY, *kin.QK_NORMS),
)
