"""Fresh weights: each by its role, and a residual stream that does not grow with the number of layers."""

import math

import pytest
import torch
import torch.nn.functional as F

from onehop.config import ModelConfig
from onehop.model import build
from onehop.model.init import RESIDUAL
from onehop.model.taps import capture
from tests.small_models import MOE, decoder, encoder_decoder


def narrow(n_layers, **own):
    return ModelConfig(**{
        "vocab_size": 64, "d_model": 32, "n_layers": n_layers, "max_len": 64, "attention": {"n_heads": 4},
        "ffn": {"kind": "gated", "d_ff": 128}, **own,
    })  # fmt: skip


def added_by_all_layers(model):
    """How much variance the sublayers add to the stream between the embedding and the last block."""
    x = torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(0))
    last = f"layers.{len(model.layers) - 1}.out"
    heard = capture(model, ["layers.0.in", last], x)
    return float((heard[last] - heard["layers.0.in"]).var())


def test_the_stream_gains_the_same_variance_in_2_and_in_80_layers():
    """Each of 2L sublayers writes 1/(2L) of the variance. Without the scaling the gain would be L times as large."""
    std = 0.1
    shallow, deep = (added_by_all_layers(build(narrow(n, init_std=std))) for n in (2, 80))
    assert deep == pytest.approx(shallow, rel=0.3)  # 1.02 with these seeds; later layers read what earlier ones wrote
    model = build(narrow(80, init_std=std))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.split(".")[-2] in RESIDUAL:
                p.mul_(math.sqrt(160))
    assert added_by_all_layers(model) > 20 * deep


@pytest.mark.parametrize("offset", [0, 2])
def test_fresh_positions_are_as_small_as_fresh_tokens(offset):
    model = build(narrow(1, embed={"position": "learned", "position_offset": offset}))
    fresh = [float(part.weight.detach().std()) for part in (model.embed.positions, model.embed.tokens)]
    assert fresh[0] == pytest.approx(fresh[1], rel=0.1)  # 2048 draws each


PLACEMENTS = {
    "pre": {},
    "post": {"norm_in": False, "norm_out": "outside"},
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_an_80_layer_narrow_model_learns_a_row_by_heart_without_blowing_up(name):
    model = build(narrow(80, **PLACEMENTS[name]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    row = torch.randint(0, 64, (1, 17), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert float(norm) < 20
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(64), rel=0.02)  # a fresh model knows nothing
    assert max(losses) == losses[0]
    assert losses[-1] < losses[0] - 0.2


def stds(model):
    return {name: float(p.detach().std()) for name, p in model.named_parameters() if p.numel() >= 1024}


def test_weights_have_the_spread_of_their_role():
    wide = {"d_model": 64, "vocab_size": 256, "init_std": 0.05}
    model = build(decoder(ffn={**MOE, "d_ff": 32, "d_ff_shared": 32, "bias": True}, n_layers=8, **wide))
    for name, std in stds(model).items():
        want = 0.05 / math.sqrt(16) if name.split(".")[-1] == "w2" or name.split(".")[-2] in RESIDUAL else 0.05
        assert std == pytest.approx(want, rel=0.1), name  # 1,024 draws or more: 2.2 % is one standard error


def test_an_encoder_is_scaled_by_its_own_depth_and_a_decoder_counts_its_cross_attention():
    own = {"n_layers": 8, "attention": {"n_heads": 4, "sees": "all"}, "ffn": {"kind": "plain", "d_ff": 64}}
    model = build(encoder_decoder(d_model=64, n_layers=3, encoder=own, init_std=0.05))
    spread = stds(model)
    assert spread["encoder.layers.0.attention.wo.weight"] == pytest.approx(0.05 / math.sqrt(16), rel=0.1)
    assert spread["layers.0.cross.wo.weight"] == pytest.approx(0.05 / math.sqrt(9), rel=0.1)


def test_norms_start_at_one_and_biases_and_sinks_at_zero():
    bias = {"bias": True, "bias_out": True, "sinks": True, "qk_norm": {"norm": {"kind": "rms", "offset": 1}}}
    model = build(decoder(attention=bias, norm="layer", head={"bias": True}, embed={"norm": "layer"},
                          ffn={**MOE, "bias": True, "balance": "bias"}))  # fmt: skip
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.startswith("layers.1."):
            continue
        if tensor.dim() == 1 or name.split(".")[-1] in ("b1", "b2", "b3"):
            (value,) = set(tensor.flatten().tolist())
            found.setdefault(value, set()).add(name.removeprefix("layers.0."))
    assert found[1.0] == {"attention_norm.weight", "ffn_norm.weight", "final_norm.weight", "embed.norm.weight"}
    assert found[0.0] == {
        "attention_norm.bias", "ffn_norm.bias", "embed.norm.bias", "head.projection.bias", "attention.sinks",
        "attention.wq.bias", "attention.wk.bias", "attention.wv.bias", "attention.wo.bias",
        "attention.q_heads.norm.weight", "attention.k_heads.norm.weight",  # offset 1 + weight 0
        "ffn.b1", "ffn.b2", "ffn.b3", "ffn.router.choice_bias",
    }  # fmt: skip
