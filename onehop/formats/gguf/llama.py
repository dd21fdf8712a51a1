"""Llama, Mistral and Mixtral as GGUF: one architecture, whose rotary pairs lie side by side. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.gguf.rope import Rope
from onehop.formats.gguf.rows import (
    BIASES,
    D_FF,
    GATED,
    IN_CONFIG,
    PRE_NORMS,
    RMS,
    SHAPE,
    STRUCTURE,
    UNTIED,
    Architecture,
    Present,
    attention,
    ends,
    key_heads,
    query_heads,
)
from onehop.formats.keys import Json, Keys, value_at
from onehop.formats.table import STACK, Move, Row, turned


def _read_experts(raw: Json) -> Json:
    if not raw.get("expert_count"):
        return {"ffn.kind": "gated"}
    return {
        "ffn.kind": "moe",
        "ffn.n_experts": raw["expert_count"],
        "ffn.n_active": raw.get("expert_used_count"),
        "ffn.renormalise": True,
    }


def _write_experts(config: ModelConfig) -> Json:
    n = value_at(config, "ffn.n_experts")
    return {} if n is None else {"expert_count": n, "expert_used_count": value_at(config, "ffn.n_active")}


EXPERTS: tuple[Row, ...] = (
    Move("blk.{i}.ffn_gate_inp.weight", "layers.{i}.ffn.router.weight", when=kin.routed),
    Move("blk.{i}.ffn_gate_exps.weight", "layers.{i}.ffn.w1", when=kin.routed),
    Move("blk.{i}.ffn_up_exps.weight", "layers.{i}.ffn.w3", when=kin.routed),
    Move("blk.{i}.ffn_down_exps.weight", "layers.{i}.ffn.w2", when=kin.routed),
)

# Mixtral's files of its first months (until April 2024) have a tensor for each expert.
EACH_EXPERT: tuple[Row, ...] = (
    Move("blk.{i}.ffn_gate.{e}.weight", "layers.{i}.ffn.w1", STACK, when=kin.routed),
    Move("blk.{i}.ffn_up.{e}.weight", "layers.{i}.ffn.w3", STACK, when=kin.routed),
    Move("blk.{i}.ffn_down.{e}.weight", "layers.{i}.ffn.w2", STACK, when=kin.routed),
)

LLAMA = Architecture(
    name="llama",
    title="GGUF of the architecture llama",
    architecture="",
    structure={path: value for path, value in STRUCTURE.items() if path != "ffn.kind"},
    keys=(
        *SHAPE,
        *D_FF,
        Keys("expert_count expert_used_count", _read_experts, _write_experts),
        *BIASES,
        Present("blk.0.ffn_gate.bias", "ffn.bias"),
        RMS,
        UNTIED,
        Rope(),
    ),
    tensors=(
        *ends(),
        *PRE_NORMS,
        *attention(turned(query_heads), turned(key_heads)),
        *GATED,
        *EXPERTS,
        *IN_CONFIG,
    ),
    older={"blk.0.ffn_gate.0.weight": EACH_EXPERT},
)
