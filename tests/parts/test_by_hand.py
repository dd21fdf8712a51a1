"""Gradients written by hand: used by backward, and left out where torch.func or the compiler need the derived ones."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from onehop.parts import norm, rope
from onehop.parts.by_hand import by_backward, by_hand
from onehop.parts.linear import multiply_by
from onehop.parts.product import onednn
from tests.small_models import VOCABULARY, decoder, small_model

ROWS = 3


@pytest.fixture
def asked(monkeypatch):
    """Which of the Functions were used."""
    found = set()
    for function in (norm._Trained, rope._Turned):
        kept = function.apply

        def apply(*args, kept=kept, function=function):
            found.add(function)
            return kept(*args)

        monkeypatch.setattr(function, "apply", apply)
    return found


def per_row(model, tokens):
    """The gradients of each row's own loss, by torch.func."""
    parameters = dict(model.named_parameters())

    def loss(parameters, row):
        return functional_call(model, parameters, (row.unsqueeze(0),)).square().sum()

    return vmap(grad(loss), (None, 0))(parameters, tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_row_by_row_through_torch_func_are_those_of_backward(asked, dtype):
    model = small_model(decoder(), dtype=dtype)
    if torch.backends.mkldnn.is_available():
        multiply_by(model, onednn)
    tokens = torch.randint(VOCABULARY, (ROWS, 8), generator=torch.Generator().manual_seed(0))
    found = per_row(model, tokens)
    assert not asked
    for i in range(ROWS):
        model.zero_grad()
        model(tokens[i : i + 1]).square().sum().backward()
        for name, parameter in model.named_parameters():
            atol = 1e-5 if dtype == torch.float32 else 1e-12  # sums in another order
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(found[name][i], parameter.grad, rtol=0, atol=atol * scale)
    assert asked == {norm._Trained, rope._Turned}


def test_by_hand_means_a_gradient_by_backward_outside_of_graphs():
    x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    assert by_hand(x, w)
    assert by_hand(None, w)
    assert not by_hand(x, None)
    with torch.no_grad():
        assert not by_hand(w)
    seen = []
    torch.compile(lambda y: seen.append((by_hand(y), by_backward(y))) or y * 2, backend="eager")(w)
    assert seen == [(False, True)]
    grad(lambda y: seen.append(by_backward(y)) or y.sum())(x)
    assert seen[1] is False
