"""The Hugging Face layout holds a Llama completely: known logits, round trips bit for bit, refusals by name."""

import json
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from onehop.base.errors import CheckpointError, ConfigError, OnehopError
from onehop.formats.table import claims
from onehop.text.bpe import train_characters
from onehop.weights import hf as hf_files
from onehop.weights import load_hf, load_native, open_model, save_hf, save_native
from tests.golden import (
    IDS,
    SUM_OF_TIED,
    golden_logits,
    golden_model,
    golden_tensors,
    write_golden,
)
from tests.llamas import llamas
from tests.small_models import DYNAMIC, LLAMA3, LONGROPE, YARN, decoder, small_model
from tests.weights.compare import same_weights

IDS_ROW = torch.tensor([IDS])
KINDS = {
    "plain": decoder(),
    "tied": decoder(head={"tied": True}),
    "biases": decoder(attention={"bias": True, "bias_out": True}, ffn={"kind": "gated", "d_ff": 10, "bias": True}),
    "multi-query": decoder(attention={"n_kv_heads": 1, "d_head": 6}),
    "other activation": decoder(ffn={"kind": "gated", "d_ff": 10, "activation": "gelu_tanh"}),
    "linear": decoder(scaling={"kind": "linear", "factor": 4.0}),
    "dynamic": decoder(scaling={**DYNAMIC, "original_max_len": 32}),
    "yarn": decoder(scaling=YARN),
    "by wavelength": decoder(scaling=LLAMA3),
    "longrope": decoder(scaling=LONGROPE),
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_golden_model_gives_the_logits_that_were_computed_elsewhere(tmp_path, tied):
    tensors = golden_tensors(tied=True)
    assert sum(float(t.sum()) for t in tensors.values()) == pytest.approx(SUM_OF_TIED, abs=1e-9)
    model = golden_model(tmp_path, tied)
    assert sum(p.numel() for p in model.parameters()) == (4128 if tied else 4336)
    # The tolerance of the case; both sides are float64 and its RoPE table is too.
    torch.testing.assert_close(model(IDS_ROW), golden_logits(tied), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_that_is_exported_comes_back_bit_for_bit(tmp_path, name):
    model = small_model(KINDS[name]).eval()
    save_hf(model, tmp_path / "hf")
    again = load_hf(tmp_path / "hf")
    assert again.config == model.config
    same_weights(again, model)
    assert torch.equal(again(IDS_ROW), model(IDS_ROW))


@settings(max_examples=12, deadline=None)
@given(config=llamas(), dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
def test_a_random_model_survives_both_layouts_in_turn(config, dtype):
    """onehop -> Hugging Face -> onehop, bit for bit, and with the same config."""
    model = small_model(config, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        save_hf(model, f"{folder}/a", max_shard=2000)
        save_native(load_hf(f"{folder}/a"), f"{folder}/b")
        again = load_native(f"{folder}/b")
    assert again.config == config
    same_weights(again, model)


def test_a_file_that_is_imported_and_exported_has_the_same_tensors(tmp_path):
    tensors = golden_tensors()
    save_hf(load_hf(write_golden(tmp_path / "a")), tmp_path / "b")
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_the_two_layouts_of_one_model_hold_the_same_weights(tmp_path):
    model = golden_model(tmp_path / "hf")
    save_native(model, tmp_path / "native")
    same_weights(load_native(tmp_path / "native"), model)


def test_tensors_are_named_by_their_role(tmp_path):
    """A swap of two equal shapes (k and v, gate and up, the norms) would pass every check of shapes."""
    model, tensors = golden_model(tmp_path), golden_tensors()
    for ours, theirs in {
        "layers.1.attention.wk": "model.layers.1.self_attn.k_proj",
        "layers.1.attention.wv": "model.layers.1.self_attn.v_proj",
        "layers.0.attention_norm": "model.layers.0.input_layernorm",
        "layers.0.ffn_norm": "model.layers.0.post_attention_layernorm",
        "layers.0.ffn.w1": "model.layers.0.mlp.gate_proj",
        "layers.0.ffn.w3": "model.layers.0.mlp.up_proj",
        "layers.0.ffn.w2": "model.layers.0.mlp.down_proj",
        "final_norm": "model.norm",
        "head.projection": "lm_head",
    }.items():
        assert torch.equal(model.get_submodule(ours).weight, tensors[f"{theirs}.weight"])


@pytest.mark.parametrize("limit", [1, 4000, 10**9])
def test_a_large_model_is_sharded_and_loads_the_same(tmp_path, limit):
    model = golden_model(tmp_path / "a")
    save_hf(model, tmp_path / "b", max_shard=limit)
    n_files = len(list((tmp_path / "b").glob("*.safetensors")))
    assert n_files == {1: 21, 10**9: 1}.get(limit, n_files)
    assert n_files > 1 or limit == 10**9
    same_weights(load_hf(tmp_path / "b"), model)


def test_a_later_save_leaves_no_shards_of_an_earlier_one(tmp_path):
    model, other = golden_model(tmp_path / "a"), golden_model(tmp_path / "a", tied=True)
    for limit in (4000, 10**9, 2000, 8000):
        save_hf(model, tmp_path / "b", max_shard=limit)
        same_weights(load_hf(tmp_path / "b"), model)
    save_hf(other, tmp_path / "b")
    assert sorted(f.name for f in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", None])
def test_the_written_config_says_the_dtype_in_both_spellings(tmp_path, dtype):
    save_hf(golden_model(tmp_path / "a"), tmp_path / "b", dtype=dtype)
    raw = json.loads((tmp_path / "b" / "config.json").read_text())
    assert raw["dtype"] == raw["torch_dtype"] == (dtype or "float64")
    assert str(load_hf(tmp_path / "b").embed.tokens.weight.dtype) == f"torch.{dtype or 'float64'}"


def test_end_tokens_go_into_every_file_that_readers_look_at(tmp_path):
    model = golden_model(tmp_path / "a")
    save_hf(model, tmp_path / "b", generation={"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.6})
    raw = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (raw["bos_token_id"], raw["eos_token_id"], raw["pad_token_id"]) == (1, [2, 3], None)
    opened = open_model(tmp_path / "b")
    assert opened.generation["temperature"] == 0.6
    assert opened.eos_ids == {2: "generation_config.json, config.json", 3: "generation_config.json, config.json"}
    save_hf(model, tmp_path / "c", tokenizer=train_characters(["abc"]))
    assert (tmp_path / "c" / "tokenizer.json").is_file()


def test_a_tied_file_may_carry_an_equal_head(tmp_path):
    tensors = golden_tensors(tied=True)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    model = load_hf(write_golden(tmp_path, tied=True, tensors=tensors))
    assert model.head.projection.weight is model.embed.tokens.weight
    torch.testing.assert_close(model(IDS_ROW), golden_logits(tied=True), rtol=0, atol=1e-4)


def test_a_tied_file_with_another_head_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"says that lm_head\.weight is model\.embed_tokens\.weight, but the two differ"
    ):
        load_hf(write_golden(tmp_path, tied=True, tensors=golden_tensors(tied=False)))


def test_an_untied_file_without_a_head_is_refused_by_the_tensors_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing lm_head\.weight\."):
        load_hf(write_golden(tmp_path, tied=False, tensors=golden_tensors(tied=True)))


def test_one_update_moves_both_ends_of_a_tied_model(tmp_path):
    model = golden_model(tmp_path, tied=True)
    with torch.no_grad():
        model.embed.tokens.weight[3, 0] += 1
    assert model.head.projection.weight[3, 0] == model.embed.tokens.weight[3, 0]
    save_hf(model, tmp_path / "b")
    assert "lm_head.weight" not in load_file(tmp_path / "b" / "model.safetensors")
    same_weights(load_hf(tmp_path / "b"), model)


def test_leftovers_of_old_files_are_dropped(tmp_path):
    tensors = golden_tensors() | {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(2)}
    same_weights(load_hf(write_golden(tmp_path / "a", tensors=tensors)), golden_model(tmp_path / "b"))


def damaged(**changes):
    """The golden tensors with some replaced (None: taken out)."""
    tensors = golden_tensors()
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    return tensors


def test_missing_unexpected_and_wrongly_shaped_tensors_are_named(tmp_path):
    tensors = damaged(model__norm__weight=None, model__layers__2__mlp__up_proj__weight=torch.ones(3))
    with pytest.raises(
        CheckpointError, match=r"missing model\.norm\.weight; unexpected model\.layers\.2\.mlp\.up_proj\.weight\."
    ):
        load_hf(write_golden(tmp_path, tensors=tensors))
    text = r"k_proj\.weight has the shape \(16, 16\), but the config needs \(8, 16\)"
    with pytest.raises(CheckpointError, match=text):
        load_hf(write_golden(tmp_path, tensors=damaged(model__layers__0__self_attn__k_proj__weight=torch.ones(16, 16))))
    with pytest.raises(
        CheckpointError, match=r"model\.norm\.weight has the dtype I64; weights can be F64, F32, F16, BF16"
    ):
        load_hf(write_golden(tmp_path, tensors=damaged(model__norm__weight=torch.ones(16, dtype=torch.int64))))


def test_a_config_that_another_model_has_is_refused_before_the_data_is_read(tmp_path, monkeypatch):
    folder = write_golden(tmp_path, vocab_size=12)
    monkeypatch.setattr("onehop.weights.safetensors_files.TensorFiles.read", lambda self, name: 1 / 0)
    text = (
        r"embed_tokens\.weight has the shape \(13, 16\), but the config needs \(12, 16\); lm_head\.weight has the shape"
    )
    with pytest.raises(CheckpointError, match=text):
        load_hf(folder)
    with pytest.raises(CheckpointError, match="the config says 1000000 layers, but there are only 21 tensors"):
        load_hf(write_golden(tmp_path, num_hidden_layers=10**6))


def test_a_truncated_file_is_refused(tmp_path):
    file = write_golden(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged: .* should end after"):
        load_hf(tmp_path)


def test_a_config_that_the_layout_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"^attention\.softcap=2\.0 cannot be written as a Hugging Face Llama"):
        save_hf(small_model(decoder(attention={"softcap": 2.0})), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_export_that_meets_a_full_disk_leaves_the_old_folder(tmp_path, monkeypatch):
    model = golden_model(tmp_path / "a")
    save_hf(model, tmp_path / "b")
    before = {f.name: f.read_bytes() for f in (tmp_path / "b").iterdir()}

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_files, "write_json", full)
    with pytest.raises(OnehopError, match="the disk is full"):
        save_hf(golden_model(tmp_path / "a", tied=True), tmp_path / "b")
    assert {f.name: f.read_bytes() for f in (tmp_path / "b").iterdir()} == before


def test_each_loader_refuses_the_others_folder(tmp_path):
    model = golden_model(tmp_path / "hf")
    save_native(model, tmp_path / "native")
    with pytest.raises(CheckpointError, match="is a Hugging Face folder, not one of onehop's own"):
        load_native(tmp_path / "hf")
    with pytest.raises(CheckpointError, match="is one of onehop's own folders, not Hugging Face's"):
        load_hf(tmp_path / "native")


@pytest.mark.parametrize("name", KINDS)
def test_the_table_names_every_tensor_of_the_model(name):
    model = small_model(KINDS[name])
    named = [ours for claim in claims(hf_files.family_of(model.config).tensors, model.config) for ours in claim.ours]
    assert sorted(named) == sorted(model.state_dict())
