"""Phi 3 and Phi 4 as Hugging Face folders: arXiv:2404.14219, 2412.08905, 2503.01743. No torch."""

from collections.abc import Iterator

from onehop.config.ffn import GatedConfig
from onehop.config.model import ModelConfig
from onehop.config.position import LongRopeScaling, RopeConfig
from onehop.formats import kin
from onehop.formats.keys import Harmless, Key, Only
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope
from onehop.formats.table import Move, Site, rows

KEYS = (
    *kin.SHAPE,
    *kin.heads(n_kv_heads=None),
    Key("sliding_window", "attention.window", default=None),
    Only("attention_bias", (False,), "this layout has no biases"),
    *kin.GATED_KEYS,
    Only("mlp_bias", (False,), "this layout has no biases"),
    Only("lm_head_bias", (False,), "this layout has no biases"),
    Key("resid_pdrop", "dropout.residual", default=0.0),
    Harmless("embd_pdrop", "training only, and their own code does not read it"),
    kin.rms_eps(1e-5),
    kin.tie(default=False),
    Rope(length=4096, part=1.0, original=4096, kinds=("default", "longrope")),
    Harmless("full_attn_mod interpolate_factor", "their own code does not read it"),
)


def _heads(site: Site) -> tuple[int, ...]:
    a = site.block.attention
    return (a.n_heads * a.d_head, a.n_kv_heads * a.d_head, a.n_kv_heads * a.d_head)


def _halves(site: Site) -> tuple[int, ...]:
    assert isinstance(site.block.ffn, GatedConfig), "the family's structure says gated"
    return (site.block.ffn.d_ff, site.block.ffn.d_ff)


def _ours(*names: str) -> tuple[str, ...]:
    return tuple(f"layers.{{i}}.{name}.weight" for name in names)


TENSORS = (
    *kin.EMBEDDING,
    *kin.PRE_NORMS,
    Move(
        "model.layers.{i}.self_attn.qkv_proj.weight",
        _ours("attention.wq", "attention.wk", "attention.wv"),
        rows(_heads),
    ),
    Move("model.layers.{i}.self_attn.o_proj.weight", "layers.{i}.attention.wo.weight"),
    Move("model.layers.{i}.mlp.gate_up_proj.weight", _ours("ffn.w1", "ffn.w3"), rows(_halves)),
    Move("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.ffn.w2.weight"),
    *kin.final_norm(),
    *kin.HEAD,
    *kin.FREQUENCIES,
)


def limits(config: ModelConfig) -> Iterator[str]:
    """What transformers refuses to open."""
    a = next(config.layers()).attention
    stretched = isinstance(a.position, RopeConfig) and isinstance(a.position.scaling, LongRopeScaling)
    if stretched and a.d_head != config.d_model // a.n_heads:
        yield (
            f"attention.d_head={a.d_head} with longrope must be d_model / n_heads={config.d_model // a.n_heads} in a "
            "Hugging Face Phi 3."
        )


PHI3 = Family(
    name="phi3",
    title="Hugging Face Phi 3",
    architecture="Phi3ForCausalLM",
    structure={**kin.STRUCTURE, "attention.bias": False, "attention.bias_out": False, "ffn.bias": False},
    keys=KEYS,
    tensors=TENSORS,
    limits=limits,
)
