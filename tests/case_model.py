"""A decoder of 4,336 parameters, described completely by a stream of integers, whose answers are known in float64."""

import torch

from onehop.config import ModelConfig
from onehop.model import build
from tests.golden import stream

NAMES = [
    "layers.{}.attention_norm.weight", "layers.{}.attention.wq.weight", "layers.{}.attention.wk.weight",
    "layers.{}.attention.wv.weight", "layers.{}.attention.wo.weight", "layers.{}.ffn_norm.weight",
    "layers.{}.ffn.w1.weight", "layers.{}.ffn.w3.weight", "layers.{}.ffn.w2.weight",
]  # fmt: skip
ORDER = [
    "embed.tokens.weight",
    *[name.format(i) for i in range(2) for name in NAMES],
    "final_norm.weight",
    "head.projection.weight",
]


def config(**own):
    """13 tokens, 16 wide, 2 layers, 4 heads sharing 2 kv heads, SwiGLU of 24, RoPE."""
    norm = {"kind": "rms", "eps": 1e-5}
    return ModelConfig.model_validate(
        {
            "vocab_size": 13, "d_model": 16, "n_layers": 2, "max_len": 64,
            "attention": {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope", "theta": 10000.0}},
            "ffn": {"kind": "gated", "d_ff": 24, "activation": "silu"},
            "norm": norm, "final_norm": norm, "head": {"tied": False}, **own,
        }
    )  # fmt: skip


def case_model(dtype=torch.float64):
    """The model with the weights of the stream, row by row."""
    model, values = build(config(), dtype=dtype), stream()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == set(ORDER)
    with torch.no_grad():
        for name in ORDER:
            weight = parameters[name]
            drawn = torch.tensor([next(values) for _ in range(weight.numel())], dtype=torch.float64)
            scale = 2.0 if name.startswith(("embed", "head")) else 1.0
            drawn = 1 + 0.4 * drawn if "norm" in name else scale * drawn
            weight.copy_(drawn.view(weight.shape))
    return model
