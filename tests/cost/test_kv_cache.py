"""The predicted bytes of a cache are those that a cache holds."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import onehop
from onehop.base.errors import ConfigError
from onehop.config import ModelConfig
from onehop.cost.kv_cache import kv_cache
from tests.cost.random_configs import configs
from tests.small_models import CONFIGS, decoder, encoder_decoder


def held(config, *, batch, context, kind="ring"):
    """Bytes in a real cache after `context` tokens; what grows is given its size at once."""
    model = onehop.build(config)
    cache = model.new_cache(batch, kind=kind, capacity=context)
    with torch.no_grad():
        for start in range(0, context, 4):
            model.states(torch.zeros(batch, min(4, context - start), dtype=torch.int64), cache=cache)
    return cache.nbytes


@pytest.mark.parametrize("name", ["rope", "latent", "window", "two kinds of layer", "learned"])
def test_a_cache_holds_what_is_predicted(name):
    config = CONFIGS[name]
    assert kv_cache(config, "float32").bytes(batch=3, context=12) == held(config, batch=3, context=12)


def test_an_encoders_keys_are_kept_once():
    config, model = encoder_decoder(), onehop.build(encoder_decoder())
    cache = model.new_cache(2, capacity=5)
    with torch.no_grad():
        model.states(torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64), cache=cache)
    assert kv_cache(config, "float32").bytes(batch=2, context=5, source=7) == cache.nbytes


@settings(max_examples=40, deadline=None)
@given(configs())
def test_per_token_it_is_what_the_model_says_of_itself(config):
    assume(config is not None)
    specs = onehop.build(config, device="meta").cache_specs()
    assert kv_cache(config, "bfloat16").bytes_per_token == sum(s.bytes_per_token(torch.bfloat16) for s in specs)


def test_a_published_figure_comes_out():
    """LLaMA-13B (Touvron et al. 2023, arXiv:2302.13971, table 2): 40 layers of 40 heads, 128 wide, in 16 bits."""
    config = ModelConfig(
        vocab_size=32000, d_model=5120, n_layers=40, max_len=2048, attention={"n_heads": 40},
        ffn={"kind": "gated", "d_ff": 13824},
    )  # fmt: skip
    found = kv_cache(config, "float16")
    assert found.bytes_per_token == 819_200
    assert found.bytes(context=2048) == 1_677_721_600  # "up to 1.7 GB" (Kwon et al. 2023, arXiv:2309.06180, section 1)


def test_multi_query_keeps_a_head_where_multi_head_keeps_all():
    many, one = (
        kv_cache(decoder(attention={"n_heads": 4, "n_kv_heads": n}), "bfloat16").bytes(context=100) for n in (4, 1)
    )
    assert many == 4 * one


@given(st.integers(1, 1000), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_without_windows_it_grows_with_context_batch_and_heads(context, batch, heads):
    one = kv_cache(decoder(attention={"n_heads": 4, "n_kv_heads": 1}), "bfloat16").bytes(context=1)
    found = kv_cache(decoder(attention={"n_heads": 4, "n_kv_heads": heads}), "bfloat16")
    assert found.bytes(batch=batch, context=context) == one * context * batch * heads


def test_eight_bits_cost_a_byte_a_number_and_a_scale_a_vector():
    assert kv_cache(onehop.presets["llama-3-8b"], "int8").bytes_per_token == 32 * 2 * 8 * (128 + 4)


def test_what_no_cache_can_hold_is_refused():
    with pytest.raises(ConfigError, match=r"a cache cannot hold 'bfloat61'\. Did you mean bfloat16"):
        kv_cache(onehop.presets["tiny"], "bfloat61")
