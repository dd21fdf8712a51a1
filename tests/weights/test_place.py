"""Files take their places together."""

import pytest

from onehop.base.errors import OnehopError
from onehop.weights.place import new_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_describes_an_earlier_model_does_not_stay_beside_a_new_one(tmp_path):
    old = [
        "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "generation_config.json", "provenance.json", "tokenizer.json", "vocab.json", "notes.txt", "model-card.md",
    ]  # fmt: skip
    for name in old:
        (tmp_path / name).write_text("old")
    with new_files(tmp_path) as new:
        (new / "config.json").write_text("new")
        (new / "model.safetensors").write_text("new")
    assert names(tmp_path) == [
        "config.json", "model-card.md", "model.safetensors", "notes.txt", "tokenizer.json", "vocab.json",
    ]  # fmt: skip
    assert (tmp_path / "model.safetensors").read_text() == "new"
    with new_files(tmp_path) as new:
        (new / "tokenizer.json").write_text("new")
    assert "vocab.json" not in names(tmp_path)  # it belonged to the tokenizer that was replaced


def test_a_save_that_was_killed_does_not_disturb_the_next(tmp_path):
    (tmp_path / ".saving").mkdir()
    (tmp_path / ".saving" / "junk").touch()
    with new_files(tmp_path) as new:
        (new / "config.json").touch()
    assert names(tmp_path) == ["config.json"]


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "m").write_text("mine")
    with pytest.raises(OnehopError, match="is a file, not a folder"), new_files(tmp_path / "m") as new:
        (new / "config.json").touch()
    assert (tmp_path / "m").read_text() == "mine"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_files(tmp_path / "link") as new:
        (new / "config.json").touch()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["config.json"]
