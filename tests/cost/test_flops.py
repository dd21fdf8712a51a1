"""FLOPs by arithmetic equal PyTorch's count on the model on the meta device, with plain kernels."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import onehop
from onehop.config import AttentionConfig
from onehop.config.recipe import TrainConfig
from onehop.cost.flops import Pass, forward, seen_pairs
from onehop.cost.muon import muon_flops
from onehop.cost.weights import weights
from onehop.machine.counter import flops_of
from onehop.parts.places import Places
from onehop.parts.sight import Sees, Sight
from onehop.training.optimizer import make_optimizer
from tests.cost.random_configs import configs
from tests.small_models import CONFIGS, encoder_decoder

B, T, S = 2, 24, 20


def planned(config, step):
    return forward(config, weights(config), step).total


def tokens(n=T):
    return torch.zeros(B, n, dtype=torch.int64, device="meta")


def passed(model, *, logits=True):
    given = (tokens(S), tokens()) if model.encoder is not None else (tokens(),)
    hidden = model.states(*given, kernel="plain").hidden
    return model.head(hidden if logits else hidden[:, -1:])


def counted(config, *, backward=False, logits=True):
    model = onehop.build(config, device="meta", dtype="bfloat16")  # the only one for grouped products there

    def call():
        out = passed(model, logits=logits)
        if backward:
            out.sum().backward()

    if backward:
        return flops_of(call)
    with torch.no_grad():
        return flops_of(call)


ALL = {**CONFIGS, "encoder-decoder": encoder_decoder(), **{
    name: onehop.presets[name] for name in ("tiny-moe", "gpt2", "llama-3-8b", "mixtral-8x7b", "gemma-3-270m")
}}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_forward_pass_takes_what_pytorch_counts(name):
    config = ALL[name]
    assert planned(config, Pass(T, source=S if config.encoder else 0)) * B == counted(config)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "tiny-moe", "latent", "encoder-decoder", "learned"])
def test_training_takes_three_times_the_forward_pass(name):
    config = ALL[name]
    assert 3 * planned(config, Pass(T, source=S if config.encoder else 0)) * B == counted(config, backward=True)


def test_a_prompt_whose_last_token_alone_is_asked_saves_the_other_logits():
    config = ALL["gpt2"]
    assert planned(config, Pass(T, logits=1)) * B == counted(config, logits=False)


@pytest.mark.parametrize("name", ["rope", "experts"])
def test_muon_orthogonalises_by_what_pytorch_counts(name):
    """Stacked experts one by one."""
    config = CONFIGS[name]
    model = onehop.build(config)
    moves = make_optimizer(model, TrainConfig(steps=9, batch_size=1, optimizer="muon"))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert muon_flops(weights(config)) == flops_of(moves.step) > 0


@settings(max_examples=30, deadline=None)  # a model is built for each: milliseconds, but not always the same
@given(configs())
def test_a_random_config_takes_what_pytorch_counts(config):
    assume(config is not None)
    # PyTorch's grouped product wants widths of whole 16 bytes; all of these have them
    assert planned(config, Pass(T, source=S if config.encoder else 0)) * B == counted(config)


@pytest.mark.parametrize("name", ["rope", "latent", "window", "learned", "experts"])
def test_a_token_that_is_decoded_takes_what_pytorch_counts(name):
    """On the CPU, where a cache lives, with kernels whose products the counter sees."""
    config = CONFIGS[name]
    model = onehop.build(config)
    cache = model.new_cache(1, kind="ring")
    with torch.no_grad():
        prompt, one = torch.zeros(1, 9, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
        model.states(prompt, cache=cache, kernel="plain")
        real = flops_of(lambda: model.head(model.states(one, cache=cache, kernel="plain").hidden))
    assert planned(config, Pass(1, past=9)) == real


@given(
    st.integers(1, 9), st.integers(0, 9), st.sampled_from([None, 1, 3, 30]), st.sampled_from(["causal", "all"])
)  # fmt: skip
def test_pairs_are_those_that_the_mask_lets_through(new, past, window, sees):
    if sees == "all":
        past = 0  # an encoder reads everything at once
    a = AttentionConfig(n_heads=1, n_kv_heads=1, d_head=4, sees=sees, window=window)
    sight = Sight(
        Sees(sees, window), Places.run(past, new, torch.device("cpu")), Places.run(0, past + new, torch.device("cpu"))
    )
    assert seen_pairs(a, new, past) == int(sight.mask.sum())


def test_pairs_of_a_long_text_are_not_counted_one_by_one():
    a = AttentionConfig(n_heads=1, n_kv_heads=1, d_head=4, sees="all", window=3)
    assert seen_pairs(a, 10**15, 0) == 5 * 10**15 - 6


def test_a_causal_mask_hides_nearly_half_of_a_long_text():
    found = forward(ALL["gpt2"], weights(ALL["gpt2"]), Pass(1024))
    assert found.attention_seen / found.attention == pytest.approx(1025 / 2048)
