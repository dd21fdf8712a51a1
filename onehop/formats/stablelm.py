"""StableLM 3B and 2 as Hugging Face folders: arXiv:2402.17834. No torch."""

from onehop.config.model import ModelConfig
from onehop.formats import kin
from onehop.formats.keys import Harmless, Json, Key, Keys, value_at
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import STACK, Move, Site


def _read_parallel(raw: Json) -> Json:
    return {"parallel": "one norm" if raw.get("use_parallel_residual") else "no"}


def _write_parallel(config: ModelConfig) -> Json:
    return {"use_parallel_residual": value_at(config, "parallel") == "one norm"}


def _one_after_the_other(site: Site) -> bool:
    return site.block.parallel == "no"


STABLELM = Family(
    name="stablelm",
    title="Hugging Face StableLM",
    architecture="StableLmForCausalLM",
    structure={**kin.STRUCTURE, "norm.kind": "layer", "final_norm.kind": "layer", "attention.bias_out": False},
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=32)[:-1],  # heads are d_model / n_heads wide
        Key("use_qkv_bias", "attention.bias", default=False),
        *kin.GATED_KEYS,
        kin.qk_norm_of_heads("qk_layernorm"),
        Keys("use_parallel_residual", _read_parallel, _write_parallel),
        kin.tie(default=False),
        Rope(length=4096, part=0.25),
        Harmless("hidden_dropout", "training only"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.block_norm("model.layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
        *kin.block_norm("model.layers.{i}.post_attention_layernorm", "layers.{i}.ffn_norm", _one_after_the_other),
        *kin.ATTENTION,
        Move(
            "model.layers.{i}.self_attn.q_layernorm.norms.{q}.weight",
            "layers.{i}.attention.q_heads.norm.weight",
            STACK,
            kin.qk_normed,
        ),
        Move(
            "model.layers.{i}.self_attn.k_layernorm.norms.{k}.weight",
            "layers.{i}.attention.k_heads.norm.weight",
            STACK,
            kin.qk_normed,
        ),
        *kin.GATED,
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
