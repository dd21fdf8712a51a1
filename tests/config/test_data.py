import json

import pytest

from onehop.base.errors import ConfigError
from onehop.config import DataConfig, Recipe, read, to_toml
from onehop.config.keys import meanings
from onehop.config.read import Loaded

MODEL = """
[model]
d_model = 16
n_layers = 1
max_len = 32
attention.n_heads = 2
ffn = {kind = "plain", d_ff = 8}
[train]
steps = 1
batch_size = 1
"""
MIXTURE = """
[data.mixture.stories]
files = ["stories.txt"]
weight = 3
[data.mixture.code]
corpus = "python-stdlib"
"""


@pytest.fixture
def recipe(tmp_path):
    def write(text=MIXTURE, name="recipe.toml"):
        (tmp_path / "recipes").mkdir(exist_ok=True)
        (tmp_path / "recipes" / name).write_text(MODEL + text)
        return tmp_path / "recipes" / name

    return write


def sources(loaded: Loaded):
    return {source.name: source for source in loaded.recipe.data.mixture}


def test_a_mixture_is_written_by_name_and_single_keys_are_overridden(recipe):
    found = sources(read(recipe(), ["data.mixture.code.weight=0.5", "data.mixture.stories.separator=|"]))
    assert list(found) == ["stories", "code"]
    assert (found["stories"].weight, found["stories"].separator) == (3, "|")
    assert (found["code"].weight, found["code"].corpus) == (0.5, "python-stdlib")
    added = sources(read(recipe(), ["data.mixture.more.corpus=fables", "data.mixture.more.n_documents=9"]))
    assert list(added) == ["stories", "code", "more"]


def test_paths_of_a_mixture_start_from_the_recipe(recipe, tmp_path):
    file = recipe()
    (tmp_path / "recipes" / "stories.txt").write_text("once")
    assert sources(read(file))["stories"].files == (str(tmp_path / "recipes" / "stories.txt"),)


def test_a_mixture_survives_being_written_and_tells_its_origins(recipe, tmp_path):
    loaded = read(recipe(), ["data.mixture.code.weight=2"])
    (tmp_path / "again.toml").write_text(to_toml(loaded.recipe))
    assert read(tmp_path / "again.toml").recipe == loaded.recipe
    assert Recipe(**json.loads(loaded.recipe.model_dump_json())) == loaded.recipe
    rows = {key: (value, origin) for key, value, origin in loaded.explain()}
    assert rows["data.mixture.code.weight"] == (2, "command line")
    assert rows["data.mixture.stories.weight"] == (3, str(recipe()))
    assert rows["data.mixture.stories.separator"] == (None, "default")
    assert "data.mixture.NAME.weight" in meanings(Recipe)


def test_one_text_replaces_a_mixture_and_a_mixture_one_text(recipe):
    data = read(recipe(), ["data.files=mine.txt"]).recipe.data
    assert (data.files, data.mixture) == (("mine.txt",), ())
    over = 'base = "recipe.toml"\n' + MODEL + '[data]\ncorpus = "python-stdlib"\n'
    file = recipe()
    (file.parent / "one.toml").write_text(over)
    assert read(file.parent / "one.toml").recipe.data.mixture == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mixture": {"a": {"corpus": "fables"}}}, "mixture has one source, a. Add another, or write its keys below"),
        (
            {"mixture": {"a": {"corpus": "fables"}, "b": {"files": "x"}}, "separator": "|", "files": "y"},
            "mixture and data.files are both given. Put it into one source: data.mixture.a.files.",
        ),
        ({"mixture": {"a": {"corpus": "fables"}, "b": {}}}, "mixture.b.files and corpus are left out: no text."),
        (
            {"mixture": {"a": {"corpus": "fables"}, "b": {"files": "x", "weight": 0}}},
            "mixture.b.weight=0: input should be greater than 0",
        ),
        ({"mixture": {"a": {"corpus": "fables"}, "b": {"file": "x"}}}, "mixture.b.file does not exist. Did you mean"),
        (
            {"mixture": {"a": {"corpus": "fables", "separator": "|"}, "b": {"files": "x"}}},
            "mixture.a.separator=| has no effect: it needs files. Leave it out.",
        ),
        (
            {"mixture": [{"name": "a", "files": "x"}, {"name": "a", "files": "y"}]},
            "mixture has two sources of one name (a, a). Give each its own.",
        ),
        ({"files": "x", "stream": True, "deduplicate": True}, "deduplicate remembers every document, and data.stream"),
        ({"files": "x", "stream": True, "tokenizer": "characters"}, "tokenizer=characters needs the whole text before"),
    ],
)
def test_what_a_text_cannot_be_is_refused_in_one_line(change, text):
    with pytest.raises(ConfigError) as refused:
        DataConfig(**change)
    assert str(refused.value).startswith(text)
