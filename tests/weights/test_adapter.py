"""Adapters in PEFT's format: by the names of a layout, there and back, and refused where they are another thing."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError, ConfigError
from onehop.formats.family import FAMILIES
from onehop.lm import LanguageModel
from onehop.model import build
from onehop.parts.lora import LowRank, adapt
from onehop.weights.adapter import CONFIG, WEIGHTS, load_adapter, read_adapter, save_adapter
from tests.parts.test_lora import some
from tests.small_models import small_model

TOKENS = torch.arange(2 * 9).reshape(2, 9) * 5 % 13

# A layout with every map by itself, one that keeps q, k and v, gate and up together, one that stores (d_in, d_out)
LAYOUTS = {
    "llama": {"ffn": {"kind": "gated", "d_ff": 24}},
    "phi3": {"ffn": {"kind": "gated", "d_ff": 24}},
    "gpt2": {
        "attention": {"n_heads": 4, "bias": True, "bias_out": True, "position": "none"},
        "ffn": {"kind": "plain", "d_ff": 24, "activation": "gelu_tanh", "bias": True},
        "embed": {"position": "learned"},
        "norm": {"kind": "layer", "eps": 1e-5},
        "final_norm": {"kind": "layer", "eps": 1e-5},
        "head": {"tied": True},
    },
}


def config(layout):
    shape = {"vocab_size": 13, "d_model": 16, "n_layers": 2, "max_len": 64, "init_std": 0.4}
    norm = {"kind": "rms", "eps": 1e-5}
    heads = {"attention": {"n_heads": 4, "n_kv_heads": 2}, "norm": norm, "final_norm": norm, "head": {"tied": False}}
    return onehop.ModelConfig(**{**shape, **heads, **LAYOUTS[layout]})


def adapted(layout, **kinds):
    model = small_model(config(layout)).double()
    adapters = some(model, **kinds)
    adapt(model, adapters)
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_saved_is_read_again_as_the_same_function(tmp_path, layout):
    family = FAMILIES.get(layout)
    model = adapted(layout)
    save_adapter(model, tmp_path / "a", base="base", family=family)
    again = small_model(config(layout)).double()
    load_adapter(again, tmp_path / "a", family=family)
    # the file is in float64 and read in float32
    torch.testing.assert_close(again(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def by_hand(tensors, config, found, path):
    """What PEFT adds to one of a layout's matrices (d_out, d_in): its own arithmetic, from the two files alone."""
    down, up = (tensors[f"base_model.model.{path}.lora_{ab}.weight"].double() for ab in "AB")
    rank = config["rank_pattern"].get(path, config["r"])
    assert down.size(0) == rank
    delta = config["alpha_pattern"].get(path, config["lora_alpha"]) / rank * up @ down
    return found[f"{path}.weight"] + (delta.T if config["fan_in_fan_out"] else delta)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_files_say_to_peft_what_the_adapters_say_here(tmp_path, layout):
    """The base in its layout, each matrix with PEFT's own product added, is the merged model in that layout."""
    family = FAMILIES.get(layout)
    plain = small_model(config(layout)).double()
    LanguageModel(plain, family=family).save(tmp_path / "base", format="hf")
    model = adapted(layout)
    save_adapter(model, tmp_path / "a", base="base", family=family)
    base = load_file(tmp_path / "base" / "model.safetensors")
    told = json.loads((tmp_path / "a" / CONFIG).read_text())
    tensors = load_file(tmp_path / "a" / WEIGHTS)
    for path in told["target_modules"]:
        base[f"{path}.weight"] = by_hand(tensors, told, base, path).contiguous()
    save_file(base, tmp_path / "base" / "model.safetensors")
    merged = onehop.load(tmp_path / "base", dtype="float64")
    torch.testing.assert_close(merged.model(TOKENS), model(TOKENS), rtol=0, atol=1e-9)


def test_adapters_of_several_widths_and_scales_each_have_a_row(tmp_path):
    model = small_model(config("phi3")).double()
    found = some(model)
    for i, (name, a) in enumerate(list(found.items())):
        if i % 3 == 0:
            found[name] = LowRank(a.down[:2], a.up[:, :2], a.scale * (1 + i))
        if i % 5 == 4:
            del found[name]  # of a fused matrix, only some parts learn
    adapt(model, found)
    for layout in ("llama", "phi3"):
        save_adapter(model, tmp_path / layout, base="base", family=FAMILIES.get(layout))
        again = small_model(config("phi3")).double()
        load_adapter(again, tmp_path / layout, family=FAMILIES.get(layout))
        torch.testing.assert_close(again(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def test_a_model_without_a_public_layout_keeps_our_names(tmp_path):
    shape = config("llama").model_dump() | {"head": {"tied": False, "softcap": 3.0, "scale": 2.0}}
    model = small_model(onehop.ModelConfig(**shape)).double()
    adapt(model, some(model))
    save_adapter(model, tmp_path / "a", base="base")
    assert "layers.0.attention.wq" in json.loads((tmp_path / "a" / CONFIG).read_text())["target_modules"]
    again = small_model(onehop.ModelConfig(**shape)).double()
    load_adapter(again, tmp_path / "a")
    torch.testing.assert_close(again(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def test_load_adds_an_adapter_to_the_weights(tmp_path):
    plain = build(config("llama"), seed=0)
    LanguageModel(plain).save(tmp_path / "base", format="hf")
    adapters = some(plain, spread=0.01)
    adapt(plain, adapters)
    save_adapter(plain, tmp_path / "a", base="base")
    lm = onehop.load(tmp_path / "base", adapter=tmp_path / "a")
    assert lm.model.state_dict().keys() == build(config("llama")).state_dict().keys()
    # float32 of logits that reach 10: the sums of a product of three are taken in another order
    torch.testing.assert_close(lm.model(TOKENS), plain(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "LOHA"}, "peft_type='LOHA' is no low-rank adapter"),
        ({"use_dora": True}, "use_dora=True changes what the adapter does"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=.* changes what the adapter does"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4' changes what the adapter does"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights='OLoRA' changes what the adapter does"),
        ({"bias": "all"}, "bias='all' changes what the adapter does"),
        ({"lora_alpha": "much"}, "lora_alpha='much' is no number"),
        ({"alpha_pattern": {"(a|b)+": 3}}, "holds more than names of modules and numbers"),
        ({"alpha_pattern": ["q_proj"]}, "holds more than names of modules and numbers"),
    ],
)
def test_another_kind_of_adapter_is_refused(tmp_path, change, text):
    model = adapted("llama")
    save_adapter(model, tmp_path / "a", base="base")
    file = tmp_path / "a" / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=text):
        read_adapter(small_model(config("llama")), tmp_path / "a")


def test_a_pattern_means_the_names_that_peft_says_it_means(tmp_path):
    """The end of a path from a dot on or, behind ^, all of it."""
    save_adapter(adapted("llama"), tmp_path / "a", base="base", family=FAMILIES.get("llama"))
    file, plain = tmp_path / "a" / CONFIG, small_model(config("llama"))
    told = json.loads(file.read_text())

    def changed(key):
        file.write_text(json.dumps(told | {"alpha_pattern": {key: 2 * told["lora_alpha"]}}))
        found = read_adapter(plain, tmp_path / "a")
        return {name for name, adapter in found.items() if adapter.scale > 1.5 * told["lora_alpha"] / told["r"]}

    assert changed("q_proj") == {"layers.0.attention.wq", "layers.1.attention.wq"}
    assert changed("layers.1.self_attn.q_proj") == {"layers.1.attention.wq"}
    assert changed("^model.layers.1.self_attn.q_proj") == {"layers.1.attention.wq"}
    assert changed("^q_proj") == changed("proj") == set()


def test_an_adapter_without_width_is_refused(tmp_path):
    save_adapter(adapted("llama"), tmp_path / "a", base="base")
    file = tmp_path / "a" / WEIGHTS
    none = {name: t[:0] if "lora_A" in name else t[:, :0].contiguous() for name, t in load_file(file).items()}
    save_file(none, file)
    with pytest.raises(CheckpointError, match=r"its adapter has the shapes \(0, 16\) .* needs \(1, 16\)"):
        read_adapter(small_model(config("llama")), tmp_path / "a")


def test_an_adapter_of_another_model_is_refused(tmp_path):
    save_adapter(adapted("llama"), tmp_path / "a", base="base")
    other = onehop.ModelConfig(**config("llama").model_dump() | {"n_layers": 1})
    with pytest.raises(CheckpointError, match=r"unexpected base_model\.model\.model\.layers\.1\."):
        read_adapter(build(other), tmp_path / "a")
    wider = onehop.ModelConfig(**config("llama").model_dump() | {"d_model": 32})
    with pytest.raises(CheckpointError, match=r"its adapter has the shapes \(3, 16\) and .* needs \(3, 32\)"):
        read_adapter(build(wider), tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"holds no adapter_config\.json"):
        read_adapter(build(other), tmp_path)
    with pytest.raises(ConfigError, match="has no adapters to save"):
        save_adapter(build(other), tmp_path / "b", base="base")
    assert not (tmp_path / "b").exists()
