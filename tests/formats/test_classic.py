"""The families before Llama: what absent keys mean, other names of keys and tensors, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError, ConfigError
from onehop.config import AlibiConfig, model_from_dict, to_dict
from onehop.config.raw import merge_stacks
from onehop.formats import FAMILIES, read_config
from onehop.formats.keys import COMMON_ROWS
from tests.parity.classic import CASES
from tests.parity.theirs import tokens, transformers

SHAPES = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4},
    "gpt_neox": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    "bloom": {"vocab_size": 97, "hidden_size": 32, "n_layer": 3, "n_head": 4},
    "falcon": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    "gptj": {"vocab_size": 97, "n_embd": 256, "n_layer": 3, "n_head": 4},
    "opt": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    "mpt": {"vocab_size": 97, "d_model": 32, "n_layers": 3, "n_heads": 4},
    "gpt_bigcode": {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4},
    "xglm": {"vocab_size": 97, "d_model": 32, "num_layers": 3, "attention_heads": 4},
}
ALIASED = [(name, alias) for name in SHAPES for alias in FAMILIES.get(name).aliases]


def raw(name, **keys):
    return {"model_type": name, **SHAPES[name], **keys}


def written(name, **keys):
    """What their configuration class makes of a few keys, every other one spelled out."""
    return transformers.AutoConfig.for_model(name, **SHAPES[name], **keys).to_dict()


@pytest.mark.parametrize("name", SHAPES)
def test_an_absent_key_means_what_their_class_takes(name):
    assert read_config(raw(name)) == read_config({**written(name), "architectures": None})


@pytest.mark.parametrize("name", SHAPES)
def test_every_key_of_their_class_has_a_row(name):
    """A null passes without one, so reading alone would not show it."""
    family = FAMILIES.get(name)
    rows = {key for row in (*family.keys, *COMMON_ROWS) for key in row.names}
    assert not {family.aliases.get(key, key) for key in written(name)} - rows


@pytest.mark.parametrize(("name", "alias"), ALIASED)
def test_a_key_may_stand_under_the_name_that_their_class_gives_it_too(name, alias):
    key = FAMILIES.get(name).aliases[alias]
    given = raw(name)
    value = given.pop(key, 64)
    plain = read_config({**given, key: value})
    assert read_config({**given, alias: value}) == plain
    assert read_config({**given, alias: value, key: value}) == plain
    with pytest.raises(CheckpointError, match=f"says {key} twice and differently"):
        read_config({**given, alias: value, key: 2 * value})


REFUSED = {
    "gpt2": [{"scale_attn_by_inverse_layer_idx": True}, {"add_cross_attention": True}],
    "gpt_neox": [{"rope_scaling": {"type": "unheard"}}],
    "bloom": [{"apply_residual_connection_post_layernorm": True}],
    "falcon": [
        {"num_ln_in_parallel_attn": 2},
        {"new_decoder_architecture": True, "parallel_attn": False},
        {"num_ln_in_parallel_attn": 3, "new_decoder_architecture": True},
        {"apply_residual_connection_post_layernorm": True},
    ],
    "gptj": [{"rotary_dim": 65}, {"rotary": False}, {"scale_attn_weights": False}],
    "opt": [{"word_embed_proj_dim": 0}],
    "mpt": [
        {"no_bias": False}, {"norm_type": "rmsnorm"}, {"logit_scale": "inv_sqrt_d_model"}, {"attn_config": 3},
        *({"attn_config": table} for table in ({"clip_qkv": 6}, {"alibi": False}, {"qk_ln": True}, {"rope": True},
                                               {"attn_type": "multiquery_attention"}, {"prefix_lm": True})),
    ],
    "gpt_bigcode": [{"activation_function": "quick_gelu"}],
    "xglm": [{"d_model": 33, "attention_heads": 3}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "keys"), [(name, keys) for name in REFUSED for keys in REFUSED[name]], ids=str)
def test_what_cannot_be_honoured_is_refused_in_one_line(name, keys):
    with pytest.raises(CheckpointError) as refused:
        read_config(raw(name, **keys))
    text = str(refused.value)
    assert "\n" not in text
    *_, key = [*keys, *(keys["attn_config"] if isinstance(keys.get("attn_config"), dict) else ())]
    told = {
        "rope_scaling": "unheard",
        "rotary_dim": "width=65",
        "attention_heads": "sinusoidal",
        "word_embed_proj_dim": "embed.width=0",
    }
    told["parallel_attn"] = told["new_decoder_architecture"] = "parallel_attn"
    assert told.get(key, key) in text


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("gpt2", {"attention": {"n_heads": 4, "d_head": 4}}, r"attention\.d_head=4 times attention\.n_heads=4 must be"),
        ("bloom", {"ffn": {"kind": "plain", "d_ff": 100}}, r"ffn\.d_ff=100 must be 4 · d_model=128"),
        ("falcon", {"attention": {"position": {"kind": "alibi"}}}, r"attention\.position\.scaled=false"),
        ("falcon", {"attention": {"position": {"kind": "none"}}}, r"attention\.position=none"),
        ("mpt", {"attention": {"position": {"max_exponent": 7.5}}}, r"max_exponent=7\.5 must be a whole number"),
        ("mpt", {"dropout": {"attention": 0.5}}, r"dropout\.attention=0\.5 must be a whole number"),
        ("gptj", {"attention": {"position": {"theta": 500.0}}}, r"attention\.position\.theta=500\.0"),
        ("xglm", {"embed": {"scale": 3.0}}, r"embed\.scale=3\.0"),
        ("opt", {"embed": {"width": 32}}, r"embed\.width=32"),
        ("opt", {"embed": {"position_offset": 1}}, r"embed\.position_offset=1"),
    ],
)
def test_what_a_layout_cannot_say_is_not_written(name, change, text):
    config = model_from_dict(merge_stacks([to_dict(read_config(raw(name))), change]))
    with pytest.raises(ConfigError, match=text):
        FAMILIES.get(name).write_config(config)


def test_mpt_says_how_steep_its_slopes_are():
    config = read_config(raw("mpt", attn_config={"alibi_bias_max": 16}))
    assert config.blocks[0].attention.position == AlibiConfig(max_exponent=16)
    again = FAMILIES.get("mpt").write_config(config)
    assert again["attn_config"]["alibi_bias_max"] == 16
    assert isinstance(again["attn_config"]["alibi_bias_max"], int)


@torch.no_grad()
def test_steeper_slopes_of_mpt_are_those_of_its_release(tmp_path):
    """The config class takes alibi_bias_max, but their model does not hand it on, as the release did."""
    case = CASES["mpt, 12 heads, scale"]
    model, x = case.build(), tokens()
    model.config.attn_config.alibi_bias_max = 16
    make = model.transformer.build_mpt_alibi_tensor
    model.transformer.build_mpt_alibi_tensor = lambda n, length, device: make(n, length, 16, device)
    model.save_pretrained(tmp_path)
    # float32 biases there
    torch.testing.assert_close(onehop.load(tmp_path, dtype="float64").model(x), model(x).logits, rtol=0, atol=2e-4)


OLD = {  # a case of each family, and what its old files carry beside the weights
    "gpt2": ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.2.attn.masked_bias": ()}),
    "gpt_neox": (
        "gpt_neox",
        {"gpt_neox.layers.0.attention.bias": (1, 1, 64, 64), "gpt_neox.layers.1.attention.masked_bias": (),
         "gpt_neox.layers.1.attention.rotary_emb.inv_freq": (1,)},
    ),
    "bloom, 4 heads": ("bloom", {}),
    "falcon, one kv head": ("falcon", {"transformer.h.0.self_attention.rotary_emb.inv_freq": (5,)}),
    "gptj": ("gptj", {"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.0.attn.masked_bias": ()}),
    "opt": ("opt", {}),
    "mpt, 4 heads": ("mpt", {}),
    "gpt_bigcode": ("gpt_bigcode", {"transformer.h.0.attn.bias": (1, 1, 64, 64)}),
    "xglm": ("xglm", {"model.embed_positions.weights": (66, 32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("bare", [False, True], ids=["whole", "body alone"])
@torch.no_grad()
def test_old_files_are_read_with_their_buffers_and_without_their_prefix(tmp_path, name, bare):
    family, buffers = FAMILIES.get(OLD[name][0]), OLD[name][1]
    CASES[name].build().save_pretrained(tmp_path)
    want = onehop.load(tmp_path).model.state_dict()
    file = tmp_path / "model.safetensors"
    tensors = {**load_file(file), **{key: torch.zeros(shape) for key, shape in buffers.items()}}
    # An old file may carry a tied head too
    config = json.loads((tmp_path / "config.json").read_text())
    if read_config(config).head.tied:
        twin = next(row for row in family.tensors if type(row).__name__ == "Twin")
        tensors[twin.theirs] = tensors[twin.of].clone()
    cut = family.prefix if bare else ""
    tensors = {key.removeprefix(cut): w.contiguous() for key, w in tensors.items()}
    save_file(tensors, file)
    got = onehop.load(tmp_path).model.state_dict()
    assert all(torch.equal(got[key], w) for key, w in want.items())
    save_file({**tensors, "strange": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match="unexpected strange"):
        onehop.load(tmp_path)
