"""Gradients of gradients: what has a gradient by hand gives those of its plain twin, or refuses; never others."""

import pytest
import torch
import torch.nn.functional as F

from onehop.base.errors import OnehopError
from onehop.parts.attend import attend
from onehop.parts.norm import _Trained, plain_rms_norm
from onehop.parts.product import onednn
from onehop.parts.rope import _cos_sin, _turn, _Turned
from onehop.parts.score_half import _Half
from onehop.parts.score_short import short

WIDTH, HEADS, KV_HEADS = 16, 4, 2
SIGHTS = {"causal": {"causal": True}, "all": {}, "a window": {"causal": True, "window": 5}}


def mask_of(sight, t):
    """(1, 1, T, T) bool; None for a triangle and for everything."""
    steps = torch.arange(t).unsqueeze(1) - torch.arange(t)
    return ((steps >= 0) & (steps < 5)).view(1, 1, t, t) if sight == "a window" else None


def by_kernel(kernel):
    return lambda q, k, v, sight: attend(q, k, v, **SIGHTS[sight], kernel=kernel)


def by_short(q, k, v, sight):
    return short(q, k, v, mask_of(sight, q.size(1)), causal=sight == "causal", scale=WIDTH**-0.5)


def by_half(q, k, v, sight):
    return _Half.apply(q, k, v, mask_of(sight, q.size(1)), sight == "causal", WIDTH**-0.5)


# name -> way, dtype, how far off: float32 rounds by 6e-8, some products after one another; float64 is cut to that in
# `half`, which sums in float32; bfloat16 rounds by 0.002 to 0.004, a handful of times
WAYS = {
    "auto, float32": (by_kernel("auto"), torch.float32, 5e-6),
    "fused, float32": (by_kernel("fused"), torch.float32, 5e-6),
    "fused, float64": (by_kernel("fused"), torch.float64, 1e-10),
    "tiled, float64": (by_kernel("tiled"), torch.float64, 1e-10),
    "short": (by_short, torch.float32, 5e-6),
    "half": (by_half, torch.bfloat16, 0.05),
    "half, as it is in float64": (by_half, torch.float64, 5e-7),
}
NEVER_REFUSE = ("short", "half", "half, as it is in float64")


def penalty(way, t, sight, *, linear, dtype):
    """The gradients of Σ |∂loss/∂(x, W)|² of attention over x·W; `linear`: the output's gradient is a constant."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, t, HEADS * WIDTH, generator=generator)
    maps = [torch.randn(HEADS * WIDTH, h * WIDTH, generator=generator) * 0.1 for h in (HEADS, KV_HEADS, KV_HEADS)]
    x, *maps = (w.to(dtype).requires_grad_() for w in (x, *maps))
    y = way(*((x @ w).unflatten(-1, (-1, WIDTH)) for w in maps), sight)
    weighted = y * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y).to(dtype)
    loss = (weighted if linear else weighted.exp()).sum()
    grads = torch.autograd.grad(loss, (x, *maps), create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in grads), (x, *maps))


def found_or_refused(way, t, sight, **how):
    try:
        return penalty(way, t, sight, **how)
    except (OnehopError, RuntimeError) as error:
        return str(error)


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("t", [8, 64, 129])
@pytest.mark.parametrize("sight", SIGHTS)
def test_a_gradient_penalty_is_that_of_the_plain_kernel_or_refused(sight, t, linear):
    exact = penalty(by_kernel("plain"), t, sight, linear=linear, dtype=torch.float64)
    for name, (way, dtype, off) in WAYS.items():
        found = found_or_refused(way, t, sight, linear=linear, dtype=dtype)
        if isinstance(found, str):
            assert "no second derivative" in found or "is not implemented" in found, name
            assert name not in NEVER_REFUSE
            continue
        for mine, plain in zip(found, exact, strict=True):
            assert (mine.double() - plain).norm() < off * plain.norm(), name


def twice(function, *inputs):
    """The gradients of Σ |∂/∂inputs|² of a weighted sum of what a function gives."""
    y = function(*inputs)
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
    grads = torch.autograd.grad(loss, inputs, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in grads), inputs)


def inputs_of(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def angles(x):
    """The cos and sin of a pair's two dims, for each of x's places."""
    return _cos_sin(torch.linspace(-2, 2, x.size(1) * x.size(-1) // 2).view(1, x.size(1), 1, -1), 1.0, torch.float64)


PAIRS = {
    "rms norm": (
        lambda x, w: _Trained.apply(x, w, 1e-5), lambda x, w: plain_rms_norm(x, w, offset=0, eps=1e-5),
        inputs_of((2, 3, 8), (8,)), torch.float64,
    ),
    "a turn": (
        lambda x, w: _Turned.apply(x * w, *angles(x)), lambda x, w: _turn(x * w, *angles(x)),
        inputs_of((2, 3, 2, 8), (8,)), torch.float64,
    ),
}  # fmt: skip
if torch.backends.mkldnn.is_available():
    PAIRS["a product"] = (onednn, F.linear, inputs_of((2, 3, 8), (5, 8)), torch.float32)


@pytest.mark.parametrize("name", PAIRS)
def test_so_is_that_of_every_other_gradient_by_hand(name):
    mine, plain, inputs, dtype = PAIRS[name]
    exact = twice(plain, *(x.clone().requires_grad_() for x in inputs))
    found = twice(mine, *(x.to(dtype).requires_grad_() for x in inputs))
    off = 1e-5 if dtype == torch.float32 else 1e-12  # a few roundings of sums of up to eight numbers
    for a, b in zip(found, exact, strict=True):
        assert (a.double() - b).norm() <= off * b.norm()
        assert b.norm() > 0
