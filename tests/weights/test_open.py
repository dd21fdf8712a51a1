"""A model is opened by path or name, and its folder tells everything else."""

import json

import pytest
import torch

from onehop.base.errors import CheckpointError, ConfigError
from onehop.weights import locate as finder
from onehop.weights import open_model, save_native
from onehop.weights.generation import end_ids
from tests.golden import IDS, golden_logits, golden_model, write_golden
from tests.small_models import decoder, small_model


def test_a_folder_is_opened_whatever_its_layout(tmp_path):
    golden_model(tmp_path / "hf")
    save_native(golden_model(tmp_path / "hf"), tmp_path / "native")
    for name, kind in (("hf", "hf"), ("native", "onehop")):
        opened = open_model(tmp_path / name, dtype="float64")
        assert (opened.kind, opened.folder) == (kind, tmp_path / name)
        assert (opened.family is not None) == (kind == "hf")
        assert (opened.tokenizer, opened.provenance, opened.generation, opened.eos_ids) == (None, None, {}, {})
        torch.testing.assert_close(opened.model(torch.tensor([IDS])), golden_logits(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, "bfloat16", "float16", None])
def test_the_dtype_is_the_one_that_is_asked_for_or_the_checkpoints_own(tmp_path, dtype):
    model = open_model(write_golden(tmp_path), dtype=dtype).model
    wanted = {None: torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype, dtype)
    assert {p.dtype for p in model.parameters()} == {wanted}


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="dtype 'float17' does not exist"):
        open_model(write_golden(tmp_path), dtype="float17")


@pytest.mark.parametrize("device", ["gpu", "cuda:97", "meta"])
def test_a_device_that_is_not_there_is_refused_in_one_line(tmp_path, device):
    with pytest.raises(ConfigError, match=rf"^device='{device}' cannot be used here: .*\. Use cpu\.$") as caught:
        open_model(write_golden(tmp_path), device=device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, b"m"])
def test_what_is_no_name_is_refused(path):
    with pytest.raises(CheckpointError, match=rf"^{path!r} names no model\. Give a path or a name, as a text\.$"):
        open_model(path)


def test_a_type_that_weights_do_not_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^dtype torch\.int8 is no type of weights here"):
        open_model(write_golden(tmp_path), dtype=torch.int8)


def write(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_end_tokens_are_gathered_from_every_file_that_names_one(tmp_path):
    write(
        tmp_path,
        config={"eos_token_id": 5},
        generation_config={"eos_token_id": [5, 9]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        special_tokens_map={"eos_token": "b"},
        tokenizer={"added_tokens": [{"id": 7, "content": "<end>"}], "model": {"vocab": {"a": 0, "b": 1}}},
    )
    assert end_ids(tmp_path) == {
        1: "special_tokens_map.json", 5: "generation_config.json, config.json", 7: "tokenizer_config.json",
        9: "generation_config.json",
    }  # fmt: skip
    write(tmp_path, tokenizer={"added_tokens": [], "model": {"vocab": [["a", -1.0], ["b", -2.0]]}})
    assert end_ids(tmp_path)[1] == "special_tokens_map.json"
    write(tmp_path, config={"eos_token_id": "</s>"})
    with pytest.raises(
        CheckpointError, match=r"config\.json: eos_token_id='</s>' should be a token id, or a list of them"
    ):
        end_ids(tmp_path)


def test_a_name_that_ships_with_onehop_is_a_model(tmp_path, monkeypatch):
    save_native(small_model(decoder()), tmp_path / "tales-tiny")
    monkeypatch.setattr(finder, "shipped", lambda kind, name: tmp_path / name if name == "tales-tiny" else None)
    monkeypatch.setattr(finder, "shipped_names", lambda kind: ["tales-tiny"])
    assert open_model("tales-tiny").config == decoder()
    with pytest.raises(CheckpointError, match=r"tale-tiny is no folder, no hub name .* Did you mean tales-tiny\?"):
        open_model("tale-tiny")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "nobody/nothing",
            "no folder here, and as a hub name it cannot be fetched: it is not in the local cache and the hub",
        ),
        ("a/b--c", "is no folder here and no hub name: Cannot have -- or"),
        ("here.gguf", "here.gguf does not exist. Give a GGUF file"),
        ("a file", "a file is a file. Give the folder that holds config.json"),
        ("no such thing", "no such thing is no folder, no hub name like 'org/model' and no model that ships"),
        ("./nothing/here", "is no folder, no hub name"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line_that_says_what_can(tmp_path, name, text):
    (tmp_path / "a file").touch()
    with pytest.raises(CheckpointError, match=text) as caught:
        open_model(name)
    assert "\n" not in str(caught.value)


def test_a_hub_name_is_taken_from_the_local_cache(tmp_path, monkeypatch):
    """The cache's own layout: snapshots of links into blobs."""
    cache = tmp_path / "cache"
    real = write_golden(cache / "models--me--golden" / "snapshots" / ("0" * 40))
    (cache / "models--me--golden" / "refs").mkdir()
    (cache / "models--me--golden" / "refs" / "main").write_text("0" * 40)
    (cache / "models--me--golden" / "blobs").mkdir()
    (real / "model.safetensors").rename(cache / "models--me--golden" / "blobs" / "aa")
    (real / "model.safetensors").symlink_to("../../blobs/aa")
    import huggingface_hub

    fetch = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **o: fetch(name, cache_dir=cache, **o))
    opened = open_model("me/golden", dtype="float64")
    assert opened.folder == real
    torch.testing.assert_close(opened.model(torch.tensor([IDS])), golden_logits(), rtol=0, atol=1e-4)
