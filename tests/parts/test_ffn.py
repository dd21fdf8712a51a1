"""Feed-forward layers equal their formulas and treat every token by itself."""

import pytest
import torch

from onehop.config import GatedConfig, MoEConfig, PlainConfig
from onehop.config import ffn as config
from onehop.parts.activation import ACTIVATIONS
from onehop.parts.ffn import FFNS, GatedFFN, PlainFFN

CONFIGS = {
    "plain": PlainConfig(d_ff=12),
    "gated": GatedConfig(d_ff=12),
    "moe": MoEConfig(d_ff=12, n_experts=4, n_active=2, d_ff_shared=4),
}


def _random(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.double()


def _x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_configs_and_parts_name_the_same_layers():
    assert set(FFNS) == set(config.FFNS) == set(CONFIGS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_a_plain_layer_is_its_formula(activation, bias):
    ffn, x = _random(PlainFFN(8, PlainConfig(d_ff=12, activation=activation, bias=bias))), _x(2, 3, 8)
    h = x @ ffn.w1.weight.T + (ffn.w1.bias if bias else 0)
    want = ACTIVATIONS.get(activation)(h) @ ffn.w2.weight.T + (ffn.w2.bias if bias else 0)
    torch.testing.assert_close(ffn(x)[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["silu", "none"])
def test_a_gated_layer_is_its_formula_with_w1_as_the_gate(activation, bias):
    ffn, x = _random(GatedFFN(8, GatedConfig(d_ff=12, activation=activation, bias=bias))), _x(2, 3, 8)
    gate = x @ ffn.w1.weight.T + (ffn.w1.bias if bias else 0)
    up = x @ ffn.w3.weight.T + (ffn.w3.bias if bias else 0)
    want = (ACTIVATIONS.get(activation)(gate) * up) @ ffn.w2.weight.T + (ffn.w2.bias if bias else 0)
    torch.testing.assert_close(ffn(x)[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_layer_has_the_same_door_and_only_experts_route(kind):
    ffn = _random(FFNS.get(kind)(8, CONFIGS[kind]))
    y, routing = ffn(_x(2, 3, 8), real=torch.ones(2, 3, dtype=torch.bool))
    assert y.shape == (2, 3, 8)
    assert (routing is not None) == (kind == "moe")


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_permutation_of_the_tokens_permutes_the_outputs(kind):
    ffn, x = _random(FFNS.get(kind)(8, CONFIGS[kind])), _x(1, 9, 8)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    # float64; a matrix product may sum in another order for another number of rows
    torch.testing.assert_close(ffn(x[:, order])[0], ffn(x)[0][:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_tokens_output_does_not_depend_on_its_neighbours(kind):
    ffn, x = _random(FFNS.get(kind)(8, CONFIGS[kind])), _x(2, 5, 8)
    whole = ffn(x)[0]
    for b in range(2):
        for t in range(5):
            alone = ffn(x[b : b + 1, t : t + 1])[0]
            torch.testing.assert_close(alone[0, 0], whole[b, t], rtol=1e-11, atol=1e-11)


def test_parameter_names_and_shapes_are_those_that_files_use():
    def shapes(kind):
        return {name: tuple(p.shape) for name, p in FFNS.get(kind)(8, CONFIGS[kind]).named_parameters()}

    assert shapes("plain") == {"w1.weight": (12, 8), "w2.weight": (8, 12)}
    assert shapes("gated") == {"w1.weight": (12, 8), "w3.weight": (12, 8), "w2.weight": (8, 12)}
    assert shapes("moe") == {
        "router.weight": (4, 8),
        "w1": (4, 12, 8),
        "w3": (4, 12, 8),
        "w2": (4, 8, 12),
        "shared.w1.weight": (4, 8),
        "shared.w3.weight": (4, 8),
        "shared.w2.weight": (8, 4),
    }
