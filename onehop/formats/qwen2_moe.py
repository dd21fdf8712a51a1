"""Qwen1.5 and Qwen2 models with experts as Hugging Face folders: arXiv:2407.10671, section 2.2.2. No torch."""

from onehop.base.errors import CheckpointError
from onehop.config.model import BlockConfig, ModelConfig
from onehop.formats import by_layer, experts, kin
from onehop.formats.by_layer import FULL, SLIDING
from onehop.formats.experts import DENSE, ROUTED, ROUTER_OUTPUT, Balance, expert_rows, shared_rows
from onehop.formats.keys import Json, Key
from onehop.formats.layout import Family
from onehop.formats.mixed import Mixed
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move

FEED_FORWARD = {
    DENSE: experts.dense_rows(5632),
    ROUTED: (
        experts.always(ffn__kind="moe", ffn__shared_gate=True),
        Key("moe_intermediate_size", "ffn.d_ff", default=1408),
        Key("shared_expert_intermediate_size", "ffn.d_ff_shared", default=5632),
        Key("num_experts", "ffn.n_experts", default=60),
        Key("num_experts_per_tok", "ffn.n_active", default=4),
        Key("norm_topk_prob", "ffn.renormalise", default=False),
        experts.ACTIVATION,
        Balance(0.001),
    ),
}
WINDOW = {SLIDING: (Key("sliding_window", "attention.window", default=4096),), FULL: ()}


def _windows(raw: Json) -> list[str]:
    """Which layers have a window: as listed, or every other one of the first `max_window_layers`."""
    n, on = by_layer.layer_count(raw), bool(raw.get("use_sliding_window"))
    listed = by_layer.listed(raw, "layer_types", n, (SLIDING, FULL))
    if listed is None:
        until = experts.count(raw, "max_window_layers", 28)
        return [SLIDING if on and i % 2 == 0 and i < until else FULL for i in range(n)]
    if SLIDING in listed and not on:
        raise CheckpointError(
            f"config.json: layer_types says {SLIDING}, but use_sliding_window is false. Set it to true, or remove "
            "layer_types."
        )
    return listed


def _kinds(raw: Json) -> list[str]:
    return [f"{w}-{f}" for w, f in zip(_windows(raw), experts.by_step(raw, 60), strict=True)]


def _kind(block: BlockConfig) -> str:
    return f"{by_layer.kind_of(block)}-{experts.kind_of(block)}"


def _says(config: ModelConfig) -> Json:
    types = by_layer.each_layer(config, by_layer.kind_of)
    return {"layer_types": types, "use_sliding_window": SLIDING in types, **experts.says_step(config)}


QWEN2_MOE = Family(
    name="qwen2_moe",
    title="Hugging Face Qwen2-MoE",
    architecture="Qwen2MoeForCausalLM",
    aliases={"num_local_experts": "num_experts"},
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *experts.heads(16),
        Key("head_dim", "attention.d_head", default=None),
        Key("qkv_bias", "attention.bias", default=True),
        kin.rms_eps(),
        Mixed(
            "use_sliding_window sliding_window max_window_layers layer_types decoder_sparse_step mlp_only_layers",
            {f"{w}-{f}": (*WINDOW[w], *FEED_FORWARD[f]) for w in WINDOW for f in FEED_FORWARD},
            _kinds,
            _kind,
            _says,
        ),
        kin.tie(default=False),
        Rope(length=32768),
        ROUTER_OUTPUT,
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        *kin.GATED,
        *expert_rows("model.layers.{i}.mlp"),
        *shared_rows("model.layers.{i}.mlp.shared_expert"),
        Move("model.layers.{i}.mlp.shared_expert_gate.weight", "layers.{i}.ffn.shared_gate.weight", when=kin.routed),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
