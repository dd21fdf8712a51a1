"""What transformers writes gives the same logits here, and what is written here gives the same logits there."""

import json
from pathlib import Path

import pytest
import torch

from onehop.generate import Engine
from onehop.weights import open_model, save_hf
from tests.golden import CONFIG, write_golden

transformers = pytest.importorskip("transformers")

STORIES = Path(__file__).parents[3] / "shared" / "models" / "stories260K"
# Both sides run in float64, but their table of rotary angles is float32: 2^-24 relative, at angles of order 10 to 100.
TOLERANCE = 1e-4

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
BY_WAVELENGTH = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0, 8.0], "factor": 3.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
BASE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
CASES = {
    "grouped": {},
    "multi-head with biases": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "heads of width 10": {"head_dim": 10},
    "another activation and eps": {"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-3},
    "relu2": {"hidden_act": "relu2"},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "dynamic, beyond its length": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.5},
                                   "max_position_embeddings": 16},
    "yarn": {"rope_parameters": YARN},
    "yarn, every key": {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False,
                                            "mscale": 0.7, "mscale_all_dim": 0.9}},
    "yarn, attention factor": {"rope_parameters": {**YARN, "attention_factor": 1.3}},
    "by wavelength": {"rope_parameters": {**BY_WAVELENGTH, "rope_theta": 5e5}},
    "longrope, beyond its length": {"rope_parameters": LONG},
}  # fmt: skip


def theirs(**keys):
    """A random model of theirs in float64, its weights spread widely so that a wrong detail shows."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**BASE, **keys})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    model.tie_weights()
    return model


def reopened(folder):
    transformers.utils.logging.disable_progress_bar()
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def tokens(length=40):
    return torch.randint(3, 97, (2, length), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits_agree_in_both_directions_and_in_both_ages_of_the_config(tmp_path, name):
    model, x = theirs(**CASES[name]), tokens()
    model.save_pretrained(tmp_path / "theirs")
    want = model(x).logits
    ours = open_model(tmp_path / "theirs").model
    torch.testing.assert_close(ours(x), want, rtol=0, atol=TOLERANCE)

    save_hf(ours, tmp_path / "ours")
    # Their own code on the same weights and the same config: nothing may differ.
    torch.testing.assert_close(reopened(tmp_path / "ours")(x).logits, want, rtol=0, atol=1e-12)
    raw = json.loads((tmp_path / "ours" / "config.json").read_text())
    old = {key: value for key, value in raw.items() if key not in ("rope_parameters", "dtype")}
    (tmp_path / "ours" / "config.json").write_text(json.dumps(old))
    torch.testing.assert_close(reopened(tmp_path / "ours")(x).logits, want, rtol=0, atol=1e-12)
    assert open_model(tmp_path / "ours").config == ours.config


DECODED = ["grouped", "dynamic, beyond its length", "longrope, beyond its length", "yarn", "by wavelength"]


@pytest.mark.parametrize("length", [5, 16, 17, 30])
@pytest.mark.parametrize("name", DECODED)
@torch.no_grad()
def test_decoding_through_the_cache_agrees_at_every_step(tmp_path, name, length):
    """24 tokens, after prompts on both sides of the 16 beyond which angles depend on the length."""
    model, prompt = theirs(**CASES[name]), tokens(length)[:1]
    model.save_pretrained(tmp_path)
    told = model.generate(
        prompt, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    session = Engine(open_model(tmp_path).model).start(prompt.tolist(), room=24)
    for want, token in zip(told.logits, told.sequences[0, length:]):
        torch.testing.assert_close(session.logits.float(), want, rtol=0, atol=TOLERANCE)  # they hand out float32
        session.advance(token[None])


@torch.no_grad()
def test_the_golden_model_opens_there_too(tmp_path):
    x = torch.tensor([[1, 5, 2]])
    folder = write_golden(tmp_path)
    torch.testing.assert_close(open_model(folder).model(x), reopened(folder)(x).logits, rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_shards_of_either_side_open_on_the_other(tmp_path):
    model, x = theirs(attention_bias=True), tokens()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    ours = open_model(tmp_path / "theirs").model
    torch.testing.assert_close(ours(x), model(x).logits, rtol=0, atol=TOLERANCE)
    save_hf(ours, tmp_path / "ours", max_shard=30_000)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    torch.testing.assert_close(reopened(tmp_path / "ours")(x).logits, model(x).logits, rtol=0, atol=1e-12)


def test_the_defaults_for_absent_keys_are_theirs():
    config = transformers.LlamaConfig()
    few = {key: CONFIG[key] for key in ("model_type", "vocab_size", "hidden_size", "intermediate_size")}
    from onehop.formats import read_config

    ours = read_config({**few, "num_hidden_layers": 1, "num_attention_heads": 4})
    assert ours.max_len == config.max_position_embeddings
    assert ours.blocks[0].norm.eps == config.rms_norm_eps
    assert ours.blocks[0].attention.position.theta == config.rope_parameters["rope_theta"]
    assert ours.head.tied == config.tie_word_embeddings
    assert ours.init_std == config.initializer_range


@torch.no_grad()
def test_a_trained_model_gives_the_same_logits_and_exports_bit_for_bit(tmp_path):
    if not STORIES.is_dir():
        pytest.skip("the trained model is not beside this checkout")
    opened = open_model(STORIES, dtype="float64")
    x = torch.randint(3, 512, (2, 100), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(opened.model(x), reopened(STORIES)(x).logits, rtol=0, atol=TOLERANCE)
    own = open_model(STORIES)
    assert own.eos_ids == {2: "generation_config.json, config.json, tokenizer_config.json"}
    save_hf(own.model, tmp_path / "b", tokenizer=own.folder, generation=own.generation)
    assert (tmp_path / "b" / "tokenizer.json").read_bytes() == (STORIES / "tokenizer.json").read_bytes()
    before, after = (open_model(folder).model.state_dict() for folder in (STORIES, tmp_path / "b"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert reopened(tmp_path / "b").generation_config.eos_token_id == 2
