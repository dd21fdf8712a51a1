"""Adapters: they change nothing at first, leave the model alone, and can be added to it."""

import copy

import pytest
import torch

from onehop.model import build
from onehop.parts import linear
from onehop.parts.linear import Linear, is_packed, multiply_by, pack
from onehop.parts.lora import Adapted, LowRank, adapt, adapters_of, added, fresh, merge, merged_weights
from onehop.parts.product import onednn
from tests.small_models import CONFIGS, VOCABULARY, small_model

TOKENS = torch.arange(2 * 9).reshape(2, 9) * 5 % VOCABULARY


def maps(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, Linear) and "layers" in name}


def some(model, *, rank=3, spread=0.5):
    """Adapters beside every linear map in the layers."""
    generator = torch.Generator().manual_seed(0)
    found = {n: fresh(m, rank=rank, alpha=5.0, generator=generator) for n, m in maps(model).items()}
    return {
        n: LowRank(a.down, torch.empty_like(a.up).normal_(0, spread, generator=generator), a.scale)
        for n, a in found.items()
    }


def inputs(model):
    return (TOKENS, TOKENS.flip(1)) if model.encoder is not None else (TOKENS,)


def test_a_fresh_adapter_changes_nothing():
    model = small_model(CONFIGS["rope"])
    before = model(TOKENS)
    generator = torch.Generator().manual_seed(0)
    adapt(model, {n: fresh(m, rank=4, alpha=8, generator=generator) for n, m in maps(model).items()})
    # W · x + 0; in float64, as q, k and v are three products now and were one
    torch.testing.assert_close(model(TOKENS), before, rtol=0, atol=1e-12)


def test_an_adapter_by_hand():
    base = Linear(2, 2)
    base.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    adapted = Adapted(base, LowRank(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [0.0]]), 0.5))
    # 0.5 · 3 · (1 + 2 · 1) = 4.5 is added to the first number
    assert adapted(torch.tensor([1.0, 1.0])).tolist() == [5.5, 1.0]
    assert added(base.weight, adapted.adapter()).tolist() == [[2.5, 3.0], [0.0, 1.0]]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_merged_model_equals_base_and_adapter(name):
    """Every kind of model; float64 leaves only a real difference."""
    model = small_model(CONFIGS[name]).double()
    plain, adapters = copy.deepcopy(model), some(model)
    base = model(*inputs(model)).detach()
    adapt(model, adapters)
    expected = model(*inputs(model))
    merge(plain, adapters)
    torch.testing.assert_close(plain(*inputs(model)), expected, rtol=0, atol=1e-9)
    again = build(model.config, dtype=torch.float64)
    again.load_state_dict(merged_weights(model))
    torch.testing.assert_close(again(*inputs(model)), expected, rtol=0, atol=1e-9)
    assert not torch.allclose(expected, base)  # so that the adapters were there at all


def test_only_the_adapters_learn_and_what_stands_side_by_side_sees_them():
    """q, k and v are one product otherwise: an adapted one has to be asked by itself."""
    model = small_model(CONFIGS["rope"])
    before = {name: p.clone() for name, p in model.named_parameters()}
    adapt(model, some(model))
    model(TOKENS).square().mean().backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learning == {f"{name}.{end}.weight" for name in adapters_of(model) for end in ("down", "up")}
    after = {name.replace(".base.", "."): p for name, p in model.named_parameters()}
    assert all(torch.equal(after[name], p) for name, p in before.items())


def test_packing_and_another_product_keep_the_adapters(monkeypatch):
    there = torch.backends.mkldnn.is_available()
    monkeypatch.setattr(linear, "_for_onednn", lambda weight: there)  # whatever the processor
    model = small_model(CONFIGS["rope"], dtype=torch.float32).eval()
    adapt(model, some(model))
    expected = model(TOKENS).detach()
    with torch.inference_mode():
        pack(model)
        assert is_packed(model) == there
        # float32 sums in another order: 1e-4 of logits around 10
        torch.testing.assert_close(model(TOKENS), expected, rtol=0, atol=1e-4)
    multiply_by(model, onednn)
    torch.testing.assert_close(model(TOKENS).detach(), expected, rtol=0, atol=1e-4)


def test_a_merge_is_rounded_once():
    """In bfloat16 ten small additions vanish one by one; their sum does not."""
    base = Linear(1, 1).to(torch.bfloat16)
    base.weight.data.fill_(1.0)
    small = LowRank(torch.ones(10, 1), torch.full((1, 10), 0.001), 1.0)
    assert float(added(base.weight.data, small)) == float(torch.tensor(1.01).bfloat16())
