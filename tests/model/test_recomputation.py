"""A forward pass leaves nothing behind: recomputing layers in the backward pass gives the same gradients."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from onehop.parts.dropout import DropKey
from tests.small_models import CONFIGS, MOE, decoder, encoder_decoder, small_model

TOKENS = torch.tensor([[1, 5, 2, 9, 4, 7, 3], [0, 12, 5, 8, 1, 1, 6]])
DROPS = {"embed": 0.1, "attention": 0.2, "residual": 0.3}
KINDS = {
    "rope": decoder(dropout=DROPS),
    "t5": decoder("t5", dropout=DROPS),
    "experts by loss": decoder(ffn=MOE, dropout=DROPS),
    "experts by bias": decoder(ffn=MOE | {"balance": "bias", "z_weight": 0.1}, dropout=DROPS),
    "sinks and window": decoder("alibi", attention={"window": 3, "sinks": True}, dropout=DROPS),
    "encoder-decoder": encoder_decoder(dropout=DROPS),
}


def gradients(model, *, key=None, kernel="auto"):
    model.zero_grad(set_to_none=True)
    inputs = (TOKENS, TOKENS.flip(1)) if model.encoder is not None else (TOKENS,)
    states = model.states(*inputs, drop=key, kernel=kernel)
    loss = F.cross_entropy(model.head(states.hidden).flatten(0, 1), TOKENS.flatten())
    for routing in states.routing:
        loss = loss if routing is None else loss + routing.weighted_loss
    loss.backward()
    loads = [None if r is None else r.load.tolist() for r in states.routing]
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters()}, loads


def recomputing(model, *, reentrant=False):
    """Every layer forgets its activations and runs again in the backward pass."""
    layers = [*model.layers, *(model.encoder.layers if model.encoder is not None else ())]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=reentrant)
    return model


@pytest.mark.parametrize("kernel", ["plain", "tiled", "auto"])
@pytest.mark.parametrize("name", KINDS)
def test_recomputed_layers_give_the_same_gradients_dropout_and_routing_included(name, kernel):
    key = DropKey.of(0, 3, 1)
    loss, want, loads = gradients(small_model(KINDS[name]), key=key, kernel=kernel)
    again, found, counted = gradients(recomputing(small_model(KINDS[name])), key=key, kernel=kernel)
    assert again == loss
    assert counted == loads  # each token once, not once more in the backward pass
    for n, grad in want.items():
        torch.testing.assert_close(found[n], grad, atol=1e-14, rtol=1e-12)  # gradients of shared tables add up in turn


def test_dropout_depends_on_its_key_and_on_nothing_else():
    model = small_model(KINDS["rope"])
    torch.manual_seed(0)
    a = gradients(model, key=DropKey.of(0, 1, 0))
    torch.manual_seed(1)
    b = gradients(model, key=DropKey.of(0, 1, 0))
    assert a[0] == b[0]
    others = [gradients(model, key=DropKey.of(*parts))[0] for parts in ((1, 1, 0), (0, 2, 0), (0, 1, 1))]
    assert len({a[0], *others, gradients(model)[0]}) == 5


def test_without_a_key_nothing_is_dropped_in_training_mode_either():
    with_rates, without = small_model(KINDS["rope"]).train(), small_model(decoder()).eval()
    assert torch.equal(with_rates(TOKENS), without(TOKENS))


@pytest.mark.parametrize("name", ["rope", "experts", "alibi"])
def test_a_forward_pass_changes_nothing_in_the_model(name):
    model = small_model(CONFIGS[name])
    before = {n: t.clone() for n, t in model.state_dict().items()}
    attributes = {id(m): set(vars(m)) for m in model.modules()}
    want = model(TOKENS)
    assert torch.equal(model(TOKENS), want)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert {id(m): set(vars(m)) for m in model.modules()} == attributes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "learned", "window", "softcap", "experts"])
def test_a_compiled_model_gives_the_same_logits_and_gradients(name):
    model = small_model(CONFIGS[name], dtype=torch.float32)
    want, want_gradients, _ = gradients(model)
    torch.compiler.reset()
    model.states = torch.compile(model.states)
    loss, found, _ = gradients(model)
    assert loss == pytest.approx(want, abs=1e-4)  # float32, other sums
    for n, grad in want_gradients.items():
        torch.testing.assert_close(found[n], grad, atol=2e-4, rtol=2e-3)
