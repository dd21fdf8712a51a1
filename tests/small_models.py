"""Small models of every kind, with weights large enough that a wrong detail shows in the logits."""

import torch

from onehop.config import ModelConfig
from onehop.config.position import POSITIONS
from onehop.model import build

VOCABULARY = 13

YARN = {"kind": "yarn", "factor": 4.0, "original_max_len": 8}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_len": 8}
DYNAMIC = {"kind": "dynamic", "factor": 2.0, "original_max_len": 8}
LONGROPE = {
    "kind": "longrope",
    "short_factor": [1.0, 1.1],
    "long_factor": [2.0, 3.0],
    "original_max_len": 8,
    "factor": 4.0,
}
MOE = {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2}


def decoder(position="rope", *, scaling=None, attention=None, **own):
    """A config of 2 layers, 16 wide, 4 heads sharing 2 kv heads."""
    kind = {"kind": position} | ({"scaling": scaling} if scaling else {})
    return ModelConfig(**{
        "vocab_size": VOCABULARY, "d_model": 16, "n_layers": 2, "max_len": 64,
        "attention": {"n_heads": 4, "n_kv_heads": 2, "position": kind} | (attention or {}),
        "ffn": {"kind": "gated", "d_ff": 24}, "head": {"tied": False}, "init_std": 0.4, **own,
    })  # fmt: skip


def encoder_decoder(**own):
    """The original transformer's layout, small."""
    block = {"attention": {"n_heads": 4, "position": {"kind": "none"}}, "ffn": {"kind": "plain", "d_ff": 24}}
    sees_all = block["attention"] | {"sees": "all"}
    embed = {"position": "sinusoidal"}
    encoder = {"n_layers": 2, **block, "attention": sees_all, "embed": embed}
    return ModelConfig(**{
        "vocab_size": VOCABULARY, "d_model": 16, "n_layers": 2, "max_len": 64, **block, "embed": embed,
        "cross": {"n_heads": 4}, "encoder": encoder, "head": {"tied": True}, "init_std": 0.4, **own,
    })  # fmt: skip


def two_kinds_of_layer():
    """A local and a global layer in turn, with different wavelengths."""
    attention = {"n_heads": 4, "n_kv_heads": 1}
    return ModelConfig(
        vocab_size=VOCABULARY, d_model=16, n_layers=4, max_len=64, attention=attention,
        ffn={"kind": "gated", "d_ff": 24},
        blocks={
            "local": {"attention": {"window": 4, "position": {"kind": "rope", "theta": 100.0}}},
            "global": {"attention": {"position": {"kind": "rope", "theta": 10000.0}}},
        },
        head={"tied": True}, init_std=0.4,
    )  # fmt: skip


CONFIGS = {
    **{kind: decoder(kind) for kind in POSITIONS.names()},  # a new scheme is read in pieces, saved, batched … at once
    "rope partly": decoder(attention={"d_head": 8, "position": {"kind": "rope", "width": 4}}),
    "rope linear": decoder(scaling={"kind": "linear", "factor": 4.0}),
    "rope ntk": decoder(scaling={"kind": "ntk", "factor": 4.0}),
    "rope yarn": decoder(scaling=YARN),
    "rope of long wavelengths": decoder(scaling=LLAMA3),
    "learned": decoder("none", embed={"position": "learned"}),
    "narrow tokens, positions from the third row": decoder(
        "none", embed={"width": 6, "position": "learned", "position_offset": 2}, head={"tied": True}
    ),
    "segments and a hidden layer before the logits": decoder(
        embed={"segments": 3, "norm": "layer"}, head={"transform": {"activation": "gelu"}}
    ),
    "sinusoidal": decoder("none", embed={"position": "sinusoidal"}),
    "window": decoder(attention={"window": 3}),
    "window, alibi and sinks": decoder("alibi", attention={"window": 3, "sinks": True}),
    "softcap": decoder(attention={"softcap": 2.0}),
    "latent": decoder(
        attention={
            "kind": "latent",
            "n_kv_heads": 4,
            "d_head": 6,
            "d_latent": 8,
            "d_value": 5,
            "position": {"kind": "rope", "width": 2},
        }
    ),
    "plain": decoder(ffn={"kind": "plain", "d_ff": 24}),
    "experts": decoder(ffn=MOE),
    "two kinds of layer": two_kinds_of_layer(),
}


def small_model(cfg, *, dtype=torch.float64, seed=0):
    """The model with random weights; every bias, norm and sink moved off its start value too."""
    model = build(cfg, seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model
