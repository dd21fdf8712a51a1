"""Qwen 1.5 to 2.5 as Hugging Face folders: arXiv:2407.10671, 2412.15115. No torch."""

from onehop.formats import kin
from onehop.formats.by_layer import LATE_WINDOWS
from onehop.formats.keys import Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

QWEN2 = Family(
    name="qwen2",
    title="Hugging Face Qwen 2",
    architecture="Qwen2ForCausalLM",
    structure={**kin.STRUCTURE, "attention.bias": True, "attention.bias_out": False},
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=32),
        LATE_WINDOWS,
        *kin.GATED_KEYS,
        kin.rms_eps(),
        kin.tie(default=False),
        Rope(length=32768),
        Only("use_mrope", (False,), "positions would have three coordinates"),
    ),
    tensors=kin.BODY,
)
