"""StarCoder 2 as Hugging Face folders: arXiv:2402.19173. No torch."""

from onehop.config.ffn import PlainConfig
from onehop.formats import kin
from onehop.formats.keys import ACTIVATIONS, Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move, Site

TANH = "gelu_pytorch_tanh"
KEYS = (
    *kin.SHAPE[:-1],
    Key("initializer_range", "init_std", default=0.018042),
    *kin.heads(n_kv_heads=2),
    Key("use_bias", ("attention.bias", "attention.bias_out", "ffn.bias"), default=True),
    Key("sliding_window", "attention.window", default=None),
    Key("intermediate_size", "ffn.d_ff"),
    Key("hidden_act", "ffn.activation", TANH, words={TANH: "gelu_tanh", **ACTIVATIONS}),
    kin.rms_eps(1e-5, key="norm_epsilon"),
    Key("residual_dropout", "dropout.residual", default=0.0),
    Key("embedding_dropout", "dropout.embed", default=0.0),
    kin.tie(default=True),
    Rope(length=4096),
    Only("mlp_type", ("default",), "the feed-forward of this layout is plain"),
    Only("norm_type", ("layer_norm",), "the norms of this layout are LayerNorms"),
    Only("scale_attn_weights", (True,), "scores are divided by the root of the heads' width"),
    Harmless("activation_function layer_norm_epsilon", "hidden_act and norm_epsilon are what is read"),
    Harmless("attention_softmax_in_fp32 scale_attention_softmax_in_fp32", "the softmax is always taken in float32"),
)


def _biased(site: Site) -> bool:
    return isinstance(site.block.ffn, PlainConfig) and site.block.ffn.bias


_IN, _OUT = "model.layers.{i}.mlp.c_fc", "model.layers.{i}.mlp.c_proj"
TENSORS = (
    *kin.EMBEDDING,
    *kin.PRE_NORMS,
    *kin.ATTENTION,
    Move(f"{_IN}.weight", "layers.{i}.ffn.w1.weight"),
    Move(f"{_IN}.bias", "layers.{i}.ffn.w1.bias", when=_biased),
    Move(f"{_OUT}.weight", "layers.{i}.ffn.w2.weight"),
    Move(f"{_OUT}.bias", "layers.{i}.ffn.w2.bias", when=_biased),
    *kin.final_norm(),
    *kin.HEAD,
    *kin.FREQUENCIES,
)

STARCODER2 = Family(
    name="starcoder2",
    title="Hugging Face StarCoder 2",
    architecture="Starcoder2ForCausalLM",
    structure={**kin.STRUCTURE, "ffn.kind": "plain", "norm.kind": "layer", "final_norm.kind": "layer"},
    keys=KEYS,
    tensors=TENSORS,
)
