"""Parts of a user's own: only a file that the user names is run, and a config knows what it added."""

import os
import sys

import pytest

from onehop.base.errors import ConfigError
from onehop.config import load_own, model_from_dict, read, to_dict, to_toml
from onehop.config import own as own_files
from onehop.config.attention import SCORES
from onehop.config.own import module_name

OWN = """
from onehop.config.attention import SCORES, ScoreConfig

class {cls}(ScoreConfig):
    kind: str = "{kind}"
    strength: float = {strength}
    steps: tuple[int, ...] = (1, 2)

SCORES.add("{kind}", {cls}, source=__file__)
with open("ran", "a") as note:
    note.write("x")
"""
RECIPE = """
[model]
preset = "tiny"
parts = ["{parts}"]
attention.score = {{kind = "{kind}", strength = 2.0}}
[data]
corpus = "fables"
[train]
steps = 1
batch_size = 1
"""


@pytest.fixture(autouse=True)
def _forget_what_a_test_added(monkeypatch):
    monkeypatch.setattr(SCORES, "_rows", dict(SCORES._rows))
    monkeypatch.setattr(SCORES, "_own", dict(SCORES._own))
    monkeypatch.setattr(own_files, "_DONE", {})


@pytest.fixture
def own(tmp_path, request):
    """A file that adds a score rule of a name that no other test uses, and a recipe that uses it."""
    kind = request.node.name.replace("test_", "")[:40]

    def write(strength=1.0):
        (tmp_path / "my_parts.py").write_text(OWN.format(cls="Mine", kind=kind, strength=strength))
        (tmp_path / "mine.toml").write_text(RECIPE.format(parts="my_parts.py", kind=kind))
        return tmp_path / "mine.toml"

    write.kind = kind
    return write


def runs(tmp_path):
    return len((tmp_path / "ran").read_text()) if (tmp_path / "ran").exists() else 0


def test_a_recipe_with_a_part_of_ones_own_is_read_hashed_and_written(own, tmp_path):
    loaded = read(own())
    model = loaded.recipe.model
    score = model.blocks[0].attention.score
    assert (score.kind, score.strength, score.steps) == (own.kind, 2.0, (1, 2))
    assert model.parts == (str(tmp_path / "my_parts.py"),)
    assert loaded.origins["model.attention.score.strength"] == str(tmp_path / "mine.toml")
    assert loaded.origins["model.attention.score.steps"] == "default"
    assert hash(model) == hash(read(own()).recipe.model)
    (tmp_path / "recipe.toml").write_text(to_toml(loaded.recipe))
    assert read(tmp_path / "recipe.toml").recipe == loaded.recipe


def test_keys_of_an_own_part_are_checked_like_all_others(own):
    with pytest.raises(
        ConfigError, match=r"^model\.attention\.score\.strenght does not exist\. Did you mean model\.attention\.score"
    ):
        read(own(), ["model.attention.score.strenght=3"])
    assert read(own(), ["model.attention.score.steps=3,4"]).recipe.model.blocks[0].attention.score.steps == (3, 4)


def test_an_unchanged_file_runs_once_and_a_changed_one_again(own, tmp_path):
    read(own())
    read(own())
    assert runs(tmp_path) == 1
    own(strength=5.0)  # as long as before and written at once: only the text tells
    load_own(tmp_path / "my_parts.py")
    assert runs(tmp_path) == 2
    assert SCORES.get(own.kind)().strength == 5.0
    assert not (tmp_path / "__pycache__").exists()


def test_a_saved_model_runs_no_file_but_those_that_the_caller_names(own, tmp_path):
    saved = to_dict(read(own()).recipe.model)
    (tmp_path / "ran").unlink()
    saved["parts"] = [str(tmp_path / "evil.py")]
    (tmp_path / "evil.py").write_text("open('evil', 'w').close()")
    saved["attention"]["score"]["kind"] = "never added"
    with pytest.raises(ConfigError) as error:
        model_from_dict(saved)
    text = str(error.value)
    assert "attention.score='never added' does not exist." in text
    assert "It may be a part of your own: name its file (--parts my_parts.py)." in text
    assert text.endswith(f"The model was made with {tmp_path / 'evil.py'}.")
    saved["attention"]["score"]["kind"] = own.kind
    config = model_from_dict(saved, parts=[tmp_path / "my_parts.py"])
    assert config.parts == (str(tmp_path / "evil.py"),)
    assert not os.path.exists("evil")


def test_a_missing_file_of_parts_is_refused():
    with pytest.raises(ConfigError, match=r"^nowhere\.py, a file with parts of your own, is not there\."):
        load_own("nowhere.py")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("x = 1\n1 / 0\n", r"^bad\.py, line 2: ZeroDivisionError: division by zero$"),
        ("def broken(:\n", r"^bad\.py, line 1: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", r"^bad\.py, line 2: SystemExit: 3$"),
        ("import no_such_module\n", r"^bad\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'$"),
    ],
)
def test_a_file_of_parts_that_fails_is_refused_with_its_line(tmp_path, text, answer):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match=answer):
        load_own("bad.py")
    assert module_name((tmp_path / "bad.py").resolve()) not in sys.modules


def test_a_file_that_failed_runs_again_when_it_is_named_again(tmp_path):
    (tmp_path / "bad.py").write_text("open('ran', 'a').write('x')\n1 / 0\n")
    for _ in range(2):
        with pytest.raises(ConfigError):
            load_own("bad.py")
    assert runs(tmp_path) == 2


def test_a_part_with_a_value_that_can_change_is_refused(tmp_path):
    (tmp_path / "listed.py").write_text(
        OWN.format(cls="Listed", kind="listed", strength=1.0).replace("tuple[int, ...] = (1, 2)", "list[int] = [1]")
    )
    (tmp_path / "listed.toml").write_text(RECIPE.format(parts="listed.py", kind="listed"))
    with pytest.raises(ConfigError, match=r"a part of your own has a value that can change .*Use tuples"):
        read("listed.toml")
