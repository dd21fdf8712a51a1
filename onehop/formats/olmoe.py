"""OLMoE as Hugging Face folders: arXiv:2409.02060. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.experts import ROUTER_OUTPUT, Balance, expert_rows
from onehop.formats.keys import Json, Key, Keys, Only, value_at
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope


def _read_clip(raw: Json) -> Json:
    """Queries and keys are cut off behind their norm here."""
    clip = raw.get("clip_qkv")
    return {} if clip is None else {"attention.clip": clip, "attention.clip_after_norm": True}


def _write_clip(config: ModelConfig) -> Json:
    return {"clip_qkv": value_at(config, "attention.clip")}


OLMOE = Family(
    name="olmoe",
    title="Hugging Face OLMoE",
    architecture="OlmoeForCausalLM",
    aliases={"num_local_experts": "num_experts"},
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "attention.qk_norm.norm.kind": "rms",
        "attention.qk_norm.span": "all",
        "ffn.kind": "moe",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *kin.HEADS,
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        *kin.GATED_KEYS,
        Key("num_experts", "ffn.n_experts", default=64),
        Key("num_experts_per_tok", "ffn.n_active", default=8),
        Key("norm_topk_prob", "ffn.renormalise", default=False),
        Balance(0.01),
        Key("rms_norm_eps", ("norm.eps", "final_norm.eps", "attention.qk_norm.norm.eps"), default=1e-5),
        kin.tie(default=False),
        Rope(length=4096),
        ROUTER_OUTPUT,
        Keys("clip_qkv", _read_clip, _write_clip),
        Only("head_dim", (), "heads share the model's width in this layout"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        *kin.QK_NORMS,
        *expert_rows("model.layers.{i}.mlp"),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
