"""Phi 3 and Phi 4 as GGUF. No torch."""

from onehop.config.ffn import GatedConfig
from onehop.config.model import ModelConfig
from onehop.formats.gguf.rope import Rope
from onehop.formats.gguf.rows import (
    D_FF,
    IN_CONFIG,
    NO_EXPERTS,
    PRE_NORMS,
    RMS,
    SHAPE,
    STRUCTURE,
    UNTIED,
    Architecture,
    ends,
    fused_attention,
    linear,
)
from onehop.formats.keys import Json, Keys, value_at
from onehop.formats.table import Move, Site, rows

WINDOW = "attention.sliding_window"


def _read_window(raw: Json) -> Json:
    """0: none (Phi 4)."""
    return {"attention.window": raw.get(WINDOW) or None}


def _write_window(config: ModelConfig) -> Json:
    return {WINDOW: value_at(config, "attention.window") or 0}


def _halves(site: Site) -> tuple[int, ...]:
    assert isinstance(site.block.ffn, GatedConfig), "the architecture's structure says gated"
    return (site.block.ffn.d_ff, site.block.ffn.d_ff)


PHI3 = Architecture(
    name="phi3",
    title="GGUF of the architecture phi3",
    architecture="",
    structure=STRUCTURE,
    keys=(*SHAPE, *D_FF, *NO_EXPERTS, RMS, UNTIED, Keys(WINDOW, _read_window, _write_window), Rope()),
    tensors=(
        *ends(),
        *PRE_NORMS,
        *fused_attention(),
        Move("blk.{i}.ffn_up.weight", ("layers.{i}.ffn.w1.weight", "layers.{i}.ffn.w3.weight"), rows(_halves)),
        *linear("ffn_down", "ffn.w2", bias=lambda site: False),
        *IN_CONFIG,
    ),
)
