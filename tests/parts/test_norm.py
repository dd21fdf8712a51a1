"""Norms: solved by hand, equal to their definition in every dtype, and rounded only once."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from onehop.config import norm as config
from onehop.config.norm import LayerNormConfig, NormConfig, RMSNormConfig
from onehop.parts.norm import NORMS, LayerNorm, NormOfHeads, RMSNorm, _rms_norm, plain_layer_norm, plain_rms_norm

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float64: 2e-15, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def _plain(norm, x):
    if isinstance(norm, RMSNorm):
        return plain_rms_norm(x, norm.weight, offset=norm.offset, eps=norm.eps)
    return plain_layer_norm(x, norm.weight, norm.bias, offset=norm.offset, eps=norm.eps)


def _random(norm, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return norm


def _x(*shape, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_configs_and_parts_name_the_same_norms():
    assert set(NORMS) == set(config.NORMS)


def test_rms_norm_solved_by_hand():
    norm = RMSNorm(2, RMSNormConfig(eps=0.0))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 10.0]))
    y = norm(torch.tensor([3.0, 4.0]))  # mean square 12.5
    torch.testing.assert_close(y, torch.tensor([3.0, 40.0]) / 12.5**0.5)


def test_the_mean_square_may_be_float32_for_float64_numbers_too():
    """1 + 2^-30 squared is 1 in float32; narrower numbers are not touched by the choice."""
    x = torch.tensor([1.0 + 2.0**-30, 1.0], dtype=torch.float64)
    norms = [RMSNorm(2, RMSNormConfig(eps=0.0, statistics=kind)).double() for kind in ("wide", "float32")]
    wide, narrow = (norm(x) for norm in norms)
    assert torch.equal(narrow, x)
    assert not torch.equal(wide, x)
    x = _x(3, 2)
    assert torch.equal(norms[0].float()(x), norms[1].float()(x))
    x = _x(3, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(norms[1].double(), x, eps=1e-3, atol=1e-3)


def test_layer_norm_solved_by_hand():
    norm = LayerNorm(2, LayerNormConfig(eps=0.0))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.5, -0.5]))
    assert norm(torch.tensor([1.0, 5.0])).tolist() == [-2 + 0.5, 3 - 0.5]  # mean 3, standard deviation 2


@pytest.mark.parametrize("cfg", [RMSNormConfig(offset=1), LayerNormConfig(offset=1), LayerNormConfig(bias=False)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_of_heads_is_each_heads_own_norm(cfg, dtype):
    norm = _random(NormOfHeads(3, 8, cfg)).to(dtype)
    x = _x(2, 5, 3, 8, dtype=dtype)
    for h in range(3):
        one = NORMS.get(cfg.kind)(8, cfg).to(dtype)
        one.load_state_dict({name: p[h] for name, p in norm.named_parameters()})
        # as below: sums in another order, then one rounding to dtype
        torch.testing.assert_close(
            norm(x)[..., h, :], _plain(one, x[..., h, :]), rtol=ROUNDING[dtype], atol=ROUNDING[dtype]
        )


def test_a_fresh_norm_of_heads_multiplies_by_one():
    for offset in (0, 1):
        norm = NormOfHeads(2, 4, LayerNormConfig(offset=offset, eps=0.0))
        x = _x(3, 2, 4, dtype=torch.float64)
        torch.testing.assert_close(norm(x), torch.nn.functional.layer_norm(x, (4,), eps=0.0))


def test_eps_stands_inside_the_root():
    x = torch.full((4,), 3.0, dtype=torch.float64)
    y = RMSNorm(4, RMSNormConfig(eps=7.0, affine=False))(x)
    torch.testing.assert_close(y, x / 4)  # sqrt(9 + 7)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 24), (2, 3, 24)])
def test_a_norm_equals_its_definition_in_value_and_gradient(kind, offset, affine, dtype, shape):
    cls = {"rms": RMSNormConfig, "layer": LayerNormConfig}[kind]
    norm = _random(NORMS.get(kind)(24, cls(offset=offset, affine=affine))).to(dtype)
    x = _x(*shape, dtype=dtype).requires_grad_()
    got, want = norm(x), _plain(norm, x)
    assert got.dtype == want.dtype == dtype
    # values are below 8; sums of 24 terms in another order, then one rounding to dtype, which may fall to either side
    torch.testing.assert_close(got, want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    leaves = [x, *norm.parameters()]
    g = _x(*shape, dtype=dtype, seed=2)
    for a, b in zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g)):
        # gradients add up to 6 rows and pass through several roundings to dtype on their way
        torch.testing.assert_close(a, b, rtol=4 * ROUNDING[dtype], atol=16 * ROUNDING[dtype])


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_float32_norm_takes_bf16_vectors(kind, grad):
    """Under autocast weights stay float32 while activations are bf16."""
    cls = {"rms": RMSNormConfig, "layer": LayerNormConfig}[kind]
    norm = _random(NORMS.get(kind)(24, cls()))
    x = _x(2, 3, 24, dtype=torch.bfloat16)
    with torch.set_grad_enabled(grad):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, _plain(norm, x), rtol=2**-7, atol=0)  # one rounding, to either side


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_bf16_norm_is_the_exact_norm_rounded_once(kind):
    cls = {"rms": RMSNormConfig, "layer": LayerNormConfig}[kind]
    norm = _random(NORMS.get(kind)(512, cls(offset=1))).bfloat16()
    x = _x(64, 512, dtype=torch.bfloat16)
    exact = _plain(norm.double(), x.double())
    y = norm.bfloat16()(x).double()
    # half a bf16 step is at most 2^-8 of the value; 2^-20 for the float32 arithmetic before it
    torch.testing.assert_close(y, exact, rtol=2**-8 + 2**-20, atol=1e-6)


def test_offset_plus_weight_is_not_rounded_to_bf16():
    """1 + 0.003 is 1 in bf16; added in float32 it moves values that lie near the middle between two bf16 numbers."""
    norm = RMSNorm(1024, RMSNormConfig(offset=1)).bfloat16()
    x = _x(1024, dtype=torch.bfloat16)
    before = norm(x)
    with torch.no_grad():
        norm.weight.fill_(0.003)
    assert not torch.equal(norm(x), before)


def test_float16_squares_do_not_overflow():
    x = torch.full((8,), 300.0, dtype=torch.float16)  # 300² is beyond float16
    assert RMSNorm(8, RMSNormConfig(affine=False))(x).tolist() == [1.0] * 8


def test_a_row_of_zeros_stays_zero_with_a_finite_gradient():
    x = torch.zeros(2, 8, requires_grad=True)
    y = RMSNorm(8, RMSNormConfig())(x)
    y.sum().backward()
    assert torch.equal(y, x)
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_fresh_norm_multiplies_by_one(kind, offset):
    cls = {"rms": RMSNormConfig, "layer": LayerNormConfig}[kind]
    x = _x(3, 16, dtype=torch.float64)
    fresh = NORMS.get(kind)(16, cls(offset=offset)).double()
    bare = NORMS.get(kind)(16, cls(affine=False))
    # 1 · y and 0 + 1 · y: equal but for the order of the product with 1/std
    torch.testing.assert_close(fresh(x), bare(x), rtol=1e-15, atol=1e-15)


def test_a_norm_has_the_parameters_that_its_config_asks_for():
    def names(kind, cfg):
        return [name for name, _ in NORMS.get(kind)(4, cfg).named_parameters()]

    assert names("rms", RMSNormConfig()) == ["weight"]
    assert names("rms", RMSNormConfig(affine=False)) == []
    assert names("layer", LayerNormConfig()) == ["weight", "bias"]
    assert names("layer", LayerNormConfig(bias=False)) == ["weight"]
    assert names("layer", LayerNormConfig(affine=False)) == []


def test_no_norm_passes_its_input_on():
    x = _x(2, 4)
    assert NORMS.get("none")(4, NormConfig())(x) is x


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_single_row_in_inference_has_the_same_norm(offset, affine, dtype):
    norm = _random(RMSNorm(24, RMSNormConfig(offset=offset, affine=affine))).to(dtype)
    rows = _x(2, 3, 24, dtype=dtype)
    with torch.inference_mode():
        whole, each = norm(rows), torch.stack([torch.cat([norm(x[None, None]) for x in row], 1)[0] for row in rows])
    assert each.dtype == dtype
    # values are below 8; sums of 24 terms in another order, then one rounding to dtype, which may fall to either side
    torch.testing.assert_close(each, whole, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize("eps", [0.0, 1e-80, 1e-6])
@pytest.mark.parametrize("row", [[0.0, 0.0], [math.inf, 1.0], [math.nan, 1.0], [1e30, -1e30], [1e-30, 0.0]])
def test_a_single_row_of_odd_numbers_has_the_norm_that_it_has_among_others(row, eps):
    norm = RMSNorm(2, RMSNormConfig(eps=eps))
    rows = torch.tensor([row, row])
    with torch.inference_mode():
        assert torch.equal(norm(rows[:1]).isfinite(), norm(rows)[:1].isfinite())


def test_layer_norm_equals_torchs_module():
    ours, theirs = _random(LayerNorm(16, LayerNormConfig(eps=1e-3))), nn.LayerNorm(16, eps=1e-3)
    theirs.load_state_dict(ours.state_dict())
    x = _x(2, 5, 16)
    assert torch.equal(ours(x), theirs(x))


def test_the_gradient_of_a_trained_rms_norm_is_that_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(7, generator=generator, dtype=torch.float64).requires_grad_()

    def own(x, weight):
        return _rms_norm(x, weight, 1e-3)

    def plain(x, weight):
        return plain_rms_norm(x, weight, offset=0, eps=1e-3)

    up = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    for mine, definition in zip(
        *(torch.autograd.grad(f(x, weight), (x, weight), up) for f in (own, plain)), strict=True
    ):
        torch.testing.assert_close(mine, definition, rtol=1e-12, atol=1e-12)  # float64, another order of sums
    assert torch.autograd.gradgradcheck(own, (x, weight))


def test_the_gradient_of_an_rms_norm_is_float32_under_autocast():
    """The backward pass may run inside autocast; its products must not be rounded to 8 bits there."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32).requires_grad_(), torch.ones(32).requires_grad_()
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(_rms_norm(x, weight, 1e-6).pow(3).sum(), (x, weight)))
    for rounded, whole in zip(*found, strict=True):
        assert torch.equal(rounded, whole)


@pytest.mark.parametrize("default", ["set_default_dtype(torch.float64)", "set_default_device('meta')"])
def test_a_single_row_has_its_norm_whatever_the_defaults_were_when_onehop_was_loaded(default):
    code = f"""
import torch
torch.{default}
from onehop.parts.norm import _rms_norm
with torch.inference_mode():
    x = torch.ones(1, 1, 8, dtype=torch.float32, device="cpu")
    print(_rms_norm(x, x[0, 0], 1e-6).dtype)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "torch.float32"
