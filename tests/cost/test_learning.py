"""FLOPs of a step in which some weights learn equal PyTorch's count on the meta device, with plain kernels."""

from fnmatch import fnmatchcase

import pytest
import torch

import onehop
from onehop.cost.flops import Pass, forward
from onehop.cost.learning import Learning, training_flops
from onehop.cost.weights import weights
from onehop.machine.counter import flops_of
from onehop.parts.linear import Linear
from onehop.parts.lora import LowRank, adapt
from onehop.training.speed import learning_of
from tests.cost.test_flops import ALL, B, S, T, passed

RANK = 3
SOME = {**ALL, "llama-3-8b": ALL["llama-3-8b"].model_copy(update={"n_layers": 3})}  # its layers are all alike


def frozen(config, *patterns):
    """A model on the meta device in which all that matches one of the patterns stays as it is."""
    model = onehop.build(config, device="meta", dtype="bfloat16")
    for name, p in model.named_parameters():
        p.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in patterns))
    return model


def adapted(config, *patterns):
    """The same with adapters beside the maps that match, which alone learn."""
    model = onehop.build(config, device="meta", dtype="bfloat16")
    chosen = {
        name: LowRank(torch.empty(RANK, m.in_features), torch.empty(m.out_features, RANK), 1.0)
        for name, m in model.named_modules()
        if isinstance(m, Linear) and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    adapt(model, {name: LowRank(a.down.to("meta"), a.up.to("meta"), a.scale) for name, a in chosen.items()})
    return model


def agree(config, model):
    step = Pass(T, source=S if config.encoder else 0)
    counted = flops_of(lambda: passed(model).sum().backward())
    assert training_flops(config, weights(config), step, learning_of(model)).total * B == counted


@pytest.mark.parametrize("name", ALL)
def test_where_all_learns_it_is_three_times_the_forward_pass(name):
    """Of all pairs and of those that are seen."""
    config = ALL[name]
    step, every = Pass(T, source=S if config.encoder else 0), weights(config)
    found = training_flops(config, every, step, Learning(frozenset(w.name for w in every)))
    once = forward(config, every, step)
    assert (found.total, found.seen) == pytest.approx((3 * once.total, 3 * once.seen))  # sums in another order


FROZEN = {
    "the embedding": ["embed.*"],
    "the first layer": ["embed.*", "layers.0.*"],
    "all but the head": ["embed.*", "layers.*"],
    "all but the second layer's feed-forward": ["embed.*", "layers.0.*", "layers.1.attention*", "*norm*", "head.*"],
    "all but a map behind the scores": ["embed.*", "layers.0.*", "layers.1.*norm*", "layers.1.attention.w[qkv]*"],
}


@pytest.mark.parametrize("frozen_", FROZEN)
@pytest.mark.parametrize("name", ["rope", "latent", "gpt2", "llama-3-8b", "tiny-moe"])
def test_what_is_frozen_has_no_gradient_and_what_lies_below_all_that_learns_no_backward_pass(name, frozen_):
    agree(SOME[name], frozen(SOME[name], *FROZEN[frozen_]))


@pytest.mark.parametrize("patterns", [["encoder.*", "embed.*"], ["embed.*", "layers.0.*"], ["layers.*", "head.*"]])
def test_an_encoder_is_below_what_reads_it(patterns):
    agree(ALL["encoder-decoder"], frozen(ALL["encoder-decoder"], *patterns))


@pytest.mark.parametrize("patterns", [["*layers.*"], ["layers.*.ffn.w2"], ["layers.1.attention.wq"]])
@pytest.mark.parametrize("name", ["rope", "llama-3-8b", "encoder-decoder"])
def test_adapters_learn_beside_maps_that_do_not(name, patterns):
    agree(SOME[name], adapted(SOME[name], *patterns))
