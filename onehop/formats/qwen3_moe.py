"""Qwen3 models with experts as Hugging Face folders: arXiv:2505.09388. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import experts, kin
from onehop.formats.experts import DENSE, ROUTED, ROUTER_OUTPUT, Balance, expert_rows
from onehop.formats.keys import Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.mixed import Mixed
from onehop.formats.rope_keys import Rope

ROUTED_ROWS = (
    experts.always(ffn__kind="moe"),
    Key("moe_intermediate_size", "ffn.d_ff", default=768),
    Key("num_experts", "ffn.n_experts", default=128),
    Key("num_experts_per_tok", "ffn.n_active", default=8),
    Key("norm_topk_prob", "ffn.renormalise", default=False),
    experts.ACTIVATION,
    Balance(0.001),
)


def _window(raw: Json) -> Json:
    return {"attention.window": raw.get("sliding_window", 4096)} if raw.get("use_sliding_window") else {}


def _says_window(config: ModelConfig) -> Json:
    window = next(config.layers()).attention.window
    return {"use_sliding_window": window is not None, "sliding_window": window}


QWEN3_MOE = Family(
    name="qwen3_moe",
    title="Hugging Face Qwen3-MoE",
    architecture="Qwen3MoeForCausalLM",
    aliases={"num_local_experts": "num_experts"},
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "attention.qk_norm.norm.kind": "rms",
        "attention.qk_norm.span": "head",
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *experts.heads(4),
        Key("head_dim", "attention.d_head", default=None),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        Key("rms_norm_eps", ("norm.eps", "final_norm.eps", "attention.qk_norm.norm.eps"), default=1e-6),
        Keys("use_sliding_window sliding_window", _window, _says_window),
        Mixed(
            "decoder_sparse_step mlp_only_layers",
            {DENSE: experts.dense_rows(6144), ROUTED: ROUTED_ROWS},
            lambda raw: experts.by_step(raw, 128),
            experts.kind_of,
            experts.says_step,
        ),
        kin.tie(default=False),
        Rope(length=32768),
        ROUTER_OUTPUT,
        Harmless("max_window_layers", "their code gives all layers the same window, or none"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        *kin.QK_NORMS,
        *kin.GATED,
        *expert_rows("model.layers.{i}.mlp"),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
