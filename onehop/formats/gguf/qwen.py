"""Qwen 2 and 3 as GGUF. No torch."""

from onehop.formats.gguf.rope import Rope
from onehop.formats.gguf.rows import (
    BIASES,
    D_FF,
    GATED,
    IN_CONFIG,
    NO_EXPERTS,
    PRE_NORMS,
    QK_RMS,
    RMS,
    SHAPE,
    STRUCTURE,
    UNTIED,
    Architecture,
    attention,
    ends,
    qk_norms,
)

KEYS = (*SHAPE, *D_FF, *NO_EXPERTS, *BIASES, UNTIED, Rope())
TENSORS = (*ends(), *PRE_NORMS, *attention(), *GATED, *IN_CONFIG)

QWEN2 = Architecture(
    name="qwen2",
    title="GGUF of the architecture qwen2",
    architecture="",
    structure=STRUCTURE,
    keys=(*KEYS, RMS),
    tensors=TENSORS,
)
QWEN3 = Architecture(
    name="qwen3",
    title="GGUF of the architecture qwen3",
    architecture="",
    structure={**STRUCTURE, "attention.qk_norm.norm.kind": "rms", "attention.qk_norm.span": "head"},
    keys=(*KEYS, QK_RMS),
    tensors=(*TENSORS, *qk_norms()),
)
