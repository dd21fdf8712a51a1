"""A folder's config tells whose layout it is, without torch and without weights."""

import json

import pytest

from onehop.base.errors import CheckpointError, ConfigError
from onehop.config import to_json
from onehop.formats.folder import describe
from tests.golden import CONFIG
from tests.small_models import decoder


def test_a_hugging_face_folder_is_known_by_its_model_type(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = describe(tmp_path)
    assert (found.kind, found.family.name, found.config.d_model) == ("hf", "llama", 16)


def test_onehops_own_folder_is_known_by_our_words(tmp_path):
    (tmp_path / "config.json").write_text(to_json(decoder()))
    found = describe(tmp_path)
    assert (found.kind, found.family, found.config) == ("onehop", None, decoder())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "holds no config.json, so it is no model"),
        ("{", "config.json is not readable JSON"),
        ("[1]", "config.json holds no JSON object"),
        ("[" * 100_000, "config.json is not readable JSON"),
        ('{"hello": 1}', "names no model_type"),
        ('{"model_type": "llama"}', "has no vocab_size, which this layout needs"),
    ],
)
def test_a_folder_that_says_nothing_is_refused_in_one_line(tmp_path, content, text):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=text) as caught:
        describe(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_an_empty_file_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere is no folder\. Give a folder that holds config.json"):
        describe(tmp_path / "nowhere")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match=r"model.gguf is truncated or damaged: it has only 0 bytes"):
        describe(tmp_path / "model.gguf")


def test_a_part_of_ones_own_is_not_run_because_a_folder_names_it(tmp_path):
    raw = json.loads(to_json(decoder())) | {"parts": ["my_parts.py"]}
    raw["attention"]["score"] = {"kind": "near_the_end"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "my_parts.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ConfigError, match=r"name its file .*The model was made with my_parts\.py"):
        describe(tmp_path)
