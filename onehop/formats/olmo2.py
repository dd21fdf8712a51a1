"""OLMo 2 as Hugging Face folders: arXiv:2501.00656. No torch."""

from onehop.formats import kin
from onehop.formats.keys import Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

OLMO2 = Family(
    name="olmo2",
    title="Hugging Face OLMo 2",
    architecture="Olmo2ForCausalLM",
    structure={
        **kin.STRUCTURE,
        "norm_in": False,
        "norm_out": "inside",
        "attention.qk_norm.norm.kind": "rms",
        "attention.qk_norm.span": "all",
    },
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=None),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        *kin.GATED_KEYS,
        kin.rms_eps(1e-5, qk=True),
        kin.tie(default=False),
        Rope(length=2048),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.block_norm("model.layers.{i}.post_attention_layernorm", "layers.{i}.inside.attention"),
        *kin.block_norm("model.layers.{i}.post_feedforward_layernorm", "layers.{i}.inside.ffn"),
        *kin.ATTENTION,
        *kin.QK_NORMS,
        *kin.GATED,
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
