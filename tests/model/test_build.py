"""From a config to a model: shapes, seeds, devices, dtypes."""

import copy
import tracemalloc

import pytest
import torch

from onehop import presets
from onehop.base.errors import ConfigError
from onehop.config import ModelConfig, to_json
from onehop.config.attention import ATTENTIONS
from onehop.config.ffn import FFNS
from onehop.config.named import presets as all_presets
from onehop.config.position import POSITIONS, SCALINGS
from onehop.model import build
from onehop.parts.attention import GroupedQueryAttention
from tests.small_models import CONFIGS, DYNAMIC, LONGROPE, decoder, encoder_decoder, small_model

EVERY_KIND = CONFIGS | {
    "dynamic": decoder(scaling=DYNAMIC),
    "longrope": decoder(scaling=LONGROPE),
    "experts by bias": decoder(ffn={"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "bias"}),
    "encoder-decoder": encoder_decoder(),
    "encoder-decoder, t5": encoder_decoder(
        embed={"position": "none"}, attention={"n_heads": 4, "position": "t5"},
        encoder={"n_layers": 1, "ffn": {"kind": "plain", "d_ff": 8},
                 "attention": {"n_heads": 4, "sees": "all", "position": "t5"}},
    ),
}  # fmt: skip


def test_every_kind_of_part_is_among_the_small_models():
    """So that a new kind is read in pieces, batched, saved and verified with the rest."""
    written = " ".join(to_json(config) for config in EVERY_KIND.values())
    for table in (ATTENTIONS, FFNS, POSITIONS, SCALINGS):
        assert [kind for kind in table.names() if f'"kind": "{kind}"' not in written] == []


def inputs(model):
    tokens = torch.tensor([[1, 5, 2, 9, 4, 7, 3]])
    return (tokens, tokens.flip(1)) if model.encoder is not None else (tokens,)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_model_on_the_meta_device_has_the_shapes_of_the_real_one(name):
    meta, real = build(EVERY_KIND[name], device="meta"), build(EVERY_KIND[name])
    there, here = meta.state_dict(), real.state_dict()
    assert {k: (v.shape, v.dtype) for k, v in there.items()} == {k: (v.shape, v.dtype) for k, v in here.items()}
    assert all(tensor.is_meta for tensor in there.values())
    assert not any(tensor.is_meta for tensor in here.values())


def test_a_model_on_the_meta_device_takes_no_memory():
    """140 GB in bfloat16, laid out with less than 50 MB of Python objects."""
    tracemalloc.start()
    model = build(presets["llama-3-70b"], device="meta", dtype="bfloat16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(p.is_meta for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == 70_553_706_496  # the published 70.6 billion
    assert peak < 50e6


@pytest.mark.parametrize("name", sorted(all_presets))
def test_every_preset_can_be_laid_out(name):
    model = build(presets[name], device="meta")
    assert len(model.layers) == presets[name].n_layers


PUBLISHED = {  # parameters, from the released checkpoints
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-3-270m": 268_098_176,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_as_many_parameters_as_the_released_models(name):
    assert sum(p.numel() for p in build(presets[name], device="meta").parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", EVERY_KIND)
def test_equal_seeds_give_equal_models_and_others_do_not(name):
    config = EVERY_KIND[name]
    a, b, other = (build(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], other[k]) for k in a)


def test_building_touches_no_random_numbers_but_its_own():
    torch.manual_seed(3)
    want = torch.rand(4)
    torch.manual_seed(3)
    build(decoder())
    assert torch.equal(torch.rand(4), want)


def test_the_dtype_changes_the_precision_of_the_weights_and_not_their_draws():
    double, half = build(decoder(), dtype="float64").state_dict(), build(decoder(), dtype=torch.bfloat16).state_dict()
    for name, weight in build(decoder()).state_dict().items():
        assert torch.equal(double[name], weight.double())
        assert torch.equal(half[name], weight.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_a_model_runs_in_every_dtype(name, dtype):
    model = small_model(EVERY_KIND[name], dtype=torch.float32)
    want = model(*inputs(model))
    model = model.to(dtype)
    logits = model(*inputs(model))
    assert logits.dtype == dtype
    # Logits of size 5 after two layers, in 8 bits of mantissa; float64 against float32.
    close = {torch.bfloat16: 0.5, torch.float16: 0.06, torch.float64: 1e-4}[dtype]
    if "moe" not in str(EVERY_KIND[name]):  # a rounding may send a token to another expert
        torch.testing.assert_close(logits.float(), want, atol=close, rtol=0)


@pytest.mark.parametrize("name", ["rope", "rope yarn", "alibi", "sinusoidal", "experts by bias"])
@torch.no_grad()
def test_what_is_not_learned_is_not_rounded_by_a_detour_over_bfloat16(name):
    """Angles, slopes and sinusoids are computed from the config; only weights are stored in the model's dtype."""
    model = small_model(EVERY_KIND[name], dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    want = model(*inputs(model))
    again = model.to(torch.bfloat16).to(torch.float32)(*inputs(model))
    assert torch.equal(again, want)


@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_a_copy_is_a_model_of_its_own(name):
    model = small_model(EVERY_KIND[name])
    want = model(*inputs(model))
    twin = copy.deepcopy(model)
    assert {id(p) for p in twin.parameters()}.isdisjoint({id(p) for p in model.parameters()})
    assert torch.equal(twin(*inputs(twin)), want)
    for p in model.parameters():
        p.zero_()
    assert torch.equal(twin(*inputs(twin)), want)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_tensor_is_listed_and_saved_once_and_every_weight_is_used(name):
    model = small_model(EVERY_KIND[name])
    pointers = [t.data_ptr() for t in model.state_dict().values()]
    assert len(pointers) == len(set(pointers))
    assert set(dict(model.named_parameters())) <= model.state_dict().keys()
    states = model.states(*inputs(model))
    loss = model.head(states.hidden).square().sum()
    for routing in (*states.routing, *states.encoder_routing):
        loss = loss if routing is None else loss + routing.balance_loss
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_schemes_with_equal_configs_are_shared_by_a_stack():
    model = build(decoder("t5"))
    assert [n for n, _ in model.named_parameters() if "table" in n] == ["schemes.0.table"]
    assert model.layers[0].attention.position is model.layers[1].attention.position
    assert len(build(CONFIGS["two kinds of layer"]).schemes) == 2


def test_an_encoder_shares_the_decoders_rows_or_has_its_own():
    own = {"n_layers": 1, "attention": {"n_heads": 4, "sees": "all"}, "ffn": {"kind": "plain", "d_ff": 8}}
    shared, apart = (build(encoder_decoder(encoder=own | {"share_embedding": share})) for share in (True, False))
    assert not any(name.startswith("encoder.embed") for name in shared.state_dict())
    assert apart.state_dict()["encoder.embed.tokens.weight"].shape == (13, 16)


def test_heads_of_every_grouping_have_the_widths_of_their_projections():
    for n_kv_heads in (1, 2, 4):
        attention = build(decoder(attention={"n_kv_heads": n_kv_heads})).layers[0].attention
        assert isinstance(attention, GroupedQueryAttention)
        assert attention.wk.weight.shape == attention.wv.weight.shape == (n_kv_heads * 4, 16)


def test_what_cannot_be_built_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^model\.vocab_size is not set\. Give a number, or train"):
        build(ModelConfig(**{**decoder().model_dump(exclude={"vocab_size", "blocks", "pattern"}),
                             "attention": {"n_heads": 4}, "ffn": {"kind": "plain", "d_ff": 8}}))  # fmt: skip
    with pytest.raises(ConfigError, match=r"^dtype 'float8' does not exist\. Known: bfloat16, float16"):
        build(decoder(), dtype="float8")
    with pytest.raises(ConfigError, match=r"^dtype torch\.int8 is no type of weights here\. Known: bfloat16, float16"):
        build(decoder(), dtype=torch.int8)
    with pytest.raises(
        ConfigError, match=r"^device='gpu' cannot .* here: no such kind is known\. Known: cpu, cuda, mps\. Use"
    ):
        build(decoder(), device="gpu")
    with pytest.raises(ConfigError, match=r"^preset 'gpt3' does not exist\. Did you mean gpt2\?$"):
        build("gpt3")
    with pytest.raises(ConfigError, match=r"^d_model is missing"):
        build({key: value for key, value in decoder().model_dump().items() if key != "d_model"})
    for nothing in (None, 3):
        with pytest.raises(ConfigError, match=rf"a preset's name, not from {nothing}$"):
            build(nothing)


def test_a_preset_is_built_by_its_name_and_a_config_from_its_fields():
    assert build("gpt2", device="meta").config == presets["gpt2"]
    assert build(decoder().model_dump(), device="meta").config == decoder()
