"""Mistral 7B and its successors as Hugging Face folders: arXiv:2310.06825. No torch."""

from onehop.formats import kin
from onehop.formats.keys import Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

MISTRAL = Family(
    name="mistral",
    title="Hugging Face Mistral",
    architecture="MistralForCausalLM",
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "ffn.kind": "gated",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=8),
        Key("sliding_window", "attention.window", default=None, absent=4096),
        *kin.GATED_KEYS,
        kin.rms_eps(),
        kin.tie(default=False),
        Rope(length=131072),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        *kin.GATED,
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
