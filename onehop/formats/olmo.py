"""OLMo as Hugging Face folders: arXiv:2402.00838. No torch."""

from onehop.formats import kin
from onehop.formats.keys import Key
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

BARE = {"kind": "layer", "affine": False, "eps": 1e-5}  # norms without weights, whose eps no key tells

OLMO = Family(
    name="olmo",
    title="Hugging Face OLMo",
    architecture="OlmoForCausalLM",
    structure={**kin.STRUCTURE, **{f"{norm}.{k}": v for norm in ("norm", "final_norm") for k, v in BARE.items()}},
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=None),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        Key("clip_qkv", "attention.clip", default=None),
        *kin.GATED_KEYS,
        kin.tie(default=False),
        Rope(length=2048),
    ),
    tensors=kin.BODY,
)
