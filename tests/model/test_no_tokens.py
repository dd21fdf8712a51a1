"""No rows, or rows without tokens, give no answers and a gradient of zero: every layer's shapes come from its input."""

from itertools import product

import pytest
import torch

from onehop.parts.ffn import FFNS
from onehop.parts.norm import NORMS
from onehop.parts.score import KERNELS
from tests.small_models import CONFIGS, DYNAMIC, LONGROPE, MOE, decoder, encoder_decoder, small_model

ROUTED = MOE | {"bias": True, "d_ff_shared": 8, "z_weight": 0.1}
LAYERS = {kind: {"kind": kind, "d_ff": 24} for kind in FFNS if kind != "moe"} | {
    f"moe of {expert}, {gate}, {balance}": ROUTED | {"expert": expert, "gate": gate, "balance": balance}
    for expert, gate, balance in product(["gated", "plain"], ["softmax", "sigmoid"], ["loss", "bias", "none"])
}
EVERY = {
    **CONFIGS,
    **{scaling["kind"]: decoder(scaling=scaling) for scaling in (DYNAMIC, LONGROPE)},
    **{f"{ffn}; {norm}": decoder(ffn=LAYERS[ffn], norm={"kind": norm}) for ffn, norm in product(LAYERS, NORMS)},
}
SHAPES = [(0, 5), (2, 0), (0, 0)]


def no_gradient(model, states):
    """Whether a loss of these states, the routers' included, moves nothing."""
    loss = model.head(states.hidden).sum()
    for routing in states.routing:
        loss = loss if routing is None else loss + routing.weighted_loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return len(gradients) > 0 and not any(gradient.any() for gradient in gradients)  # nan counts as any


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_no_tokens_give_no_answers_and_move_nothing(name, shape):
    tokens = torch.zeros(shape, dtype=torch.int64)
    for dtype, at in [(torch.float64, None), (torch.float32, tokens)]:  # experts: a loop, and a grouped product
        model = small_model(EVERY[name], dtype=dtype)
        states = model.states(tokens, at=at)
        assert model.head(states.hidden).shape == (*shape, 13)
        assert no_gradient(model, states)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "window, alibi and sinks", "softcap"])
def test_no_kernel_needs_a_token(name, kernel, shape):
    tokens = torch.zeros(shape, dtype=torch.int64)
    for at, doc in product([None, tokens], repeat=2):
        model = small_model(CONFIGS[name])
        assert no_gradient(model, model.states(tokens, at=at, doc=doc, kernel=kernel))


@pytest.mark.parametrize("kind", ["growing", "fixed", "ring"])
@pytest.mark.parametrize("name", ["rope", "window", "experts", "dynamic"])
@torch.no_grad()
def test_no_rows_may_be_continued(name, kind):
    model = small_model(EVERY[name])
    cache = model.new_cache(0, kind=kind, capacity=4)
    for n in (3, 1):
        assert model(torch.zeros(0, n, dtype=torch.int64), cache=cache).shape == (0, n, 13)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_sources_give_no_answers_either(shape):
    model, tokens = small_model(encoder_decoder()), torch.zeros(shape, dtype=torch.int64)
    states = model.states(tokens, tokens)
    assert states.hidden.shape == (*shape, 16)
    assert no_gradient(model, states)
