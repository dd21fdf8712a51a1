"""Latent attention equals its equations, written out, with and without a cache."""

import math

import pytest
import torch
import torch.nn.functional as F

from onehop.base.errors import ConfigError
from onehop.config import ModelConfig
from onehop.model.taps import capture
from tests.small_models import YARN, decoder, small_model

LATENT = {
    "kind": "latent", "n_heads": 4, "n_kv_heads": 4, "d_head": 10, "d_latent": 6, "d_value": 5, "bias": True,
    "bias_out": True, "position": {"kind": "rope", "width": 4},
}  # fmt: skip


def latent(**own):
    return decoder(attention={**LATENT, **own})


def turned(x, at):
    """Dims (j, j + 2) of the last 4 turned by at / 10000^(j/2)."""
    angle = at[:, None] * torch.tensor([1.0, 10000**-0.5], dtype=torch.float64)  # (T, 2)
    a, b = x[..., :2], x[..., 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def by_hand(m, x):
    """Equations 9 to 19 of arXiv:2405.04434, head by head: x (T, C) -> (T, C)."""
    at, t = torch.arange(len(x), dtype=torch.float64), len(x)
    kept = m.wkv_down(x)  # (T, L + R)
    c, k_turning = m.kv_norm(kept[:, :6]), turned(kept[:, 6:], at)
    q, kv = m.wq(m.q_norm(m.wq_down(x))), m.wkv(c)  # (T, H·D), (T, K·(D - R + Dv))
    heads = []
    for h in range(4):
        k = h * m.kv_heads // 4  # the kv head that serves it
        own = kv[:, 11 * k : 11 * k + 11]
        q_still, q_turning = q[:, 10 * h : 10 * h + 6], turned(q[:, 10 * h + 6 : 10 * h + 10], at)
        scores = (q_still @ own[:, :6].T + q_turning @ k_turning.T) / math.sqrt(10)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ own[:, 6:])
    return F.linear(torch.cat(heads, -1), m.wo.weight, m.wo.bias)


@torch.no_grad()
@pytest.mark.parametrize("own", [{}, {"d_latent_q": 7}, {"n_kv_heads": 2}], ids=str)
def test_it_is_its_equations(own):
    model = small_model(latent(**own)).double()
    x = torch.arange(12)[None] * 7 % 13
    heard = capture(model, ["layers.1.attention_norm", "layers.1.attention"], x)
    want = by_hand(model.layers[1].attention, heard["layers.1.attention_norm"][0])
    # float64, the same sums in another order
    torch.testing.assert_close(heard["layers.1.attention"][0], want, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["growing", "fixed", "ring"])
@pytest.mark.parametrize(
    "own",
    [{}, {"d_latent_q": 7, "window": 5}, {"position": {"kind": "rope", "width": 4, "scaling": YARN}}],
    ids=["plain", "window", "yarn"],
)
def test_decoding_from_the_cache_equals_one_pass(kind, own):
    model = small_model(latent(**own)).double()
    x = torch.stack([torch.arange(16) * 7 % 13, torch.arange(16) * 5 % 13])
    cache = model.new_cache(2, kind=kind, capacity=16)
    parts = [model(x[:, :6], cache=cache), *(model(x[:, i : i + 1], cache=cache) for i in range(6, 16))]
    for i, n in ((5, 6), (9, 10), (15, 16)):
        want = model(x[:, :n])[:, -1]
        torch.testing.assert_close(torch.cat(parts, 1)[:, i], want, rtol=1e-10, atol=1e-10)


def test_each_token_costs_the_latent_and_the_turning_dims_whatever_the_number_of_heads():
    for heads in (1, 4):
        spec = small_model(latent(n_heads=heads, n_kv_heads=heads)).cache_specs()[0]
        assert spec.bytes_per_token(torch.float32) == (6 + 4) * 4


@torch.no_grad()
def test_what_is_kept_can_be_heard():
    heard = capture(small_model(latent()), ["layers.0.attention.*"], torch.arange(5)[None])
    shapes = {name.rpartition(".")[2]: tuple(value.shape) for name, value in heard.items()}
    assert shapes == {"latent": (1, 5, 6), "turning": (1, 5, 4), "q": (1, 5, 4, 10), "weights": (1, 4, 5, 5),
                      "mixed": (1, 5, 4, 5)}  # fmt: skip


def test_gradients_reach_every_weight():
    model = small_model(latent(d_latent_q=7))
    model(torch.arange(9)[None]).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.layers[0].attention.parameters())


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"position": "rope"}, r"attention\.position: .* Use rope with a width below d_head=10\."),
        ({"position": "alibi"}, r"attention\.position: .* Use rope"),
        ({"position": {"kind": "rope", "width": 10}}, r"a width below d_head=10"),
        ({"qk_norm": {"norm": "rms"}}, r"attention\.qk_norm: latent attention normalises its latents"),
    ],
)
def test_what_cannot_be_built_is_refused(own, text):
    with pytest.raises(ConfigError, match=text):
        latent(**own)


def test_it_survives_being_written():
    config = latent(d_latent_q=7)
    assert ModelConfig.model_validate(config.model_dump()) == config
