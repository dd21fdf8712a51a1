"""Every activation that can be asked for is the published function."""

import math
from typing import get_args

import pytest
import torch

from onehop.config.ffn import Activation
from onehop.parts.activation import ACTIVATIONS

X = [-3.0, -1.0, -0.1, 0.0, 0.1, 0.5, 2.0]


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


DEFINITIONS = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "sigmoid": _sigmoid,
    "none": lambda x: x,
}


def test_the_table_holds_what_configs_may_name():
    assert set(ACTIVATIONS) == set(get_args(Activation)) == set(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_activation_equals_its_definition(name):
    got = ACTIVATIONS.get(name)(torch.tensor(X, dtype=torch.float64))
    # float64 both ways; 1e-12 leaves room for another libm's erf and exp
    torch.testing.assert_close(
        got, torch.tensor([DEFINITIONS[name](x) for x in X], dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_the_tanh_form_of_gelu_is_another_function():
    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    distance = (ACTIVATIONS.get("gelu")(x) - ACTIVATIONS.get("gelu_tanh")(x)).abs().max()
    assert 1e-4 < distance < 5e-4  # what the docstring says
