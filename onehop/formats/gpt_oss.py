"""The gpt-oss models as Hugging Face folders: arXiv:2508.10925. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import by_layer, kin
from onehop.formats.by_layer import FULL, SLIDING
from onehop.formats.experts import ROUTER_OUTPUT, Balance, heads
from onehop.formats.keys import Harmless, Json, Key, Keys
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import ALTERNATING, ALTERNATING_COLUMNS, TRANSPOSE, Move

WINDOW = 128
# What their class takes where a file says nothing of rotary scaling.
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class StretchedRope(Rope):
    """Rotary keys whose default is a scaling."""

    def read(self, raw: Json) -> Json:
        given = raw.get("rope_parameters") or raw.get("rope_scaling")
        return super().read(raw if given else {**raw, "rope_parameters": YARN})


def _windows(raw: Json) -> Json:
    n = by_layer.layer_count(raw)
    kinds = by_layer.listed(raw, "layer_types", n, (SLIDING, FULL)) or [(SLIDING, FULL)[i % 2] for i in range(n)]
    return by_layer.windows({"sliding_window": WINDOW, **raw}, kinds)


def _says_windows(config: ModelConfig) -> Json:
    return {
        "layer_types": by_layer.each_layer(config, by_layer.kind_of),
        "sliding_window": by_layer.window_of(config) or WINDOW,  # theirs makes a mask of it even for no layer
    }


_EXPERTS, _OURS = "model.layers.{i}.mlp.experts", "layers.{i}.ffn"
GPT_OSS = Family(
    name="gpt_oss",
    title="Hugging Face gpt-oss",
    architecture="GptOssForCausalLM",
    aliases={"num_experts": "num_local_experts"},
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "rope",
        "attention.sinks": True,
        "ffn.kind": "moe",
        "ffn.bias": True,
        "ffn.activation": "silu",
        "ffn.up_offset": 1.0,
        "ffn.router_bias": True,
        "ffn.renormalise": True,  # the softmax of the chosen logits is the softmax of all of them, renormalised
        "norm.kind": "rms",
        "final_norm.kind": "rms",
    },
    keys=(
        *kin.SHAPE,
        *heads(8),
        Key("head_dim", "attention.d_head", default=None, absent=64),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=True),
        Keys("layer_types sliding_window", _windows, _says_windows),
        Key("intermediate_size", "ffn.d_ff"),
        Key("num_local_experts", "ffn.n_experts", default=128),
        Key("num_experts_per_tok", "ffn.n_active", default=4),
        Key("swiglu_alpha", "ffn.swish_gain", default=1.702),
        Key("swiglu_limit", "ffn.clamp", default=7.0),
        Balance(0.001),
        kin.rms_eps(1e-5),
        kin.tie(default=False),
        StretchedRope(length=131072, theta=150000.0),
        ROUTER_OUTPUT,
        Harmless("hidden_act", "the experts' gate is always the clamped one"),
        Harmless("experts_per_token initial_context_length", "said by num_experts_per_tok and the rotary keys"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *kin.ATTENTION,
        Move("model.layers.{i}.self_attn.sinks", "layers.{i}.attention.sinks"),
        Move("model.layers.{i}.mlp.router.weight", f"{_OURS}.router.weight"),
        Move("model.layers.{i}.mlp.router.bias", f"{_OURS}.router.bias"),
        Move(f"{_EXPERTS}.gate_up_proj", (f"{_OURS}.w1", f"{_OURS}.w3"), ALTERNATING_COLUMNS),
        Move(f"{_EXPERTS}.gate_up_proj_bias", (f"{_OURS}.b1", f"{_OURS}.b3"), ALTERNATING),
        Move(f"{_EXPERTS}.down_proj", f"{_OURS}.w2", TRANSPOSE),
        Move(f"{_EXPERTS}.down_proj_bias", f"{_OURS}.b2"),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
