"""Mixtral 8x7B and 8x22B as Hugging Face folders: arXiv:2401.04088. No torch."""

from onehop.formats import experts, kin
from onehop.formats.experts import ROUTER_OUTPUT, Balance, expert_rows
from onehop.formats.keys import Harmless, Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

MIXTRAL = Family(
    name="mixtral",
    title="Hugging Face Mixtral",
    architecture="MixtralForCausalLM",
    aliases={"num_experts": "num_local_experts"},
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "ffn.kind": "moe",
        "ffn.renormalise": True,
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *experts.heads(8),
        Key("head_dim", "attention.d_head", default=None),
        Key("sliding_window", "attention.window", default=None),
        *kin.GATED_KEYS,
        Key("num_local_experts", "ffn.n_experts", default=8),
        Key("num_experts_per_tok", "ffn.n_active", default=2),
        Balance(0.001),
        kin.rms_eps(1e-5),
        kin.tie(default=False),
        Rope(length=131072, theta=1e6),
        ROUTER_OUTPUT,
        Harmless("router_jitter_noise", "noise before the router, in training only"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        *expert_rows("model.layers.{i}.block_sparse_moe", ("w1", "w3", "w2")),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
