"""A recipe from its layers: which wins, where each value comes from, and what a user reads when a file is wrong."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onehop
from onehop.base.errors import ConfigError
from onehop.base.shipped import shipped
from onehop.config import ModelConfig, Recipe, layers, read, to_toml
from onehop.config.keys import known_keys
from onehop.config.raw import merge, merge_stacks

PLAIN = """
[model]
d_model = 32
n_layers = 2
max_len = 64
attention.n_heads = 4
ffn = {kind = "gated", d_ff = 64}
[data]
corpus = "fables"
n_documents = 100
[train]
steps = 10
batch_size = 4
"""


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe and give its path."""

    def write(text=PLAIN, name="plain.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def refused(*arguments, **options):
    with pytest.raises(ConfigError) as error:
        read(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- which layer wins


def test_preset_base_file_and_command_line_win_in_this_order(recipe):
    recipe('[model]\npreset = "gpt2"\nn_layers = 3\nd_model = 96\n[train]\nsteps = 1\nlr = 0.5\nseed = 7', "base.toml")
    top = recipe(
        'base = "base.toml"\n[model]\nn_layers = 4\n[data]\ncorpus = "fables"\n[train]\nbatch_size = 2\nlr = 0.25'
    )
    loaded = read(top, ["train.lr=0.125"])
    model, train = loaded.recipe.model, loaded.recipe.train
    assert (model.max_len, model.d_model, model.n_layers) == (1024, 96, 4)
    assert (train.steps, train.seed, train.batch_size, train.lr) == (1, 7, 2, 0.125)
    origins = {key: loaded.origins[key] for key in ("model.max_len", "model.d_model", "model.n_layers", "train.lr")}
    assert origins == {
        "model.max_len": "preset gpt2",
        "model.d_model": str(top.parent / "base.toml"),
        "model.n_layers": str(top),
        "train.lr": "command line",
    }
    assert loaded.origins["model.attention.d_head"] == "filled in (d_model / n_heads)"
    assert loaded.origins["train.eps"] == "default"


def test_the_preset_lies_below_everything_wherever_it_is_named(recipe):
    file = recipe('model.n_layers = 3\ndata.corpus = "fables"\ntrain = {steps = 1, batch_size = 1}')
    loaded = read(file, ["model.preset=gpt2"])
    assert (loaded.recipe.model.n_layers, loaded.recipe.model.d_model) == (3, 768)
    assert loaded.origins["model.attention.bias"] == "preset gpt2"
    assert loaded.origins["model.n_layers"] == str(file)


def test_a_preset_after_a_shape_without_one_replaces_it(recipe):
    """Below a complete shape a preset would change nothing, and nobody would notice."""
    assert read(recipe(), ["model.preset=tiny-moe"]).recipe.model == onehop.presets["tiny-moe"]
    loaded = read(recipe(), ["model.preset=tiny-moe", "model.n_layers=7"])
    assert loaded.recipe.model == ModelConfig(preset="tiny-moe", n_layers=7)
    assert loaded.origins["model.d_model"] == "preset tiny-moe"


def test_a_later_preset_replaces_an_earlier_one(recipe):
    file = recipe('[model]\npreset = "gpt2"\n[data]\ncorpus = "fables"\n[train]\nsteps = 1\nbatch_size = 1')
    assert read(file, ["model.preset=tiny-moe"]).recipe.model == onehop.presets["tiny-moe"]
    assert "preset" not in read(file).origins
    assert refused(file, ["model.preset=tiny-mo"]) == "model.preset='tiny-mo' does not exist. Did you mean tiny-moe?"


def test_a_base_of_a_base_may_lie_in_another_folder(recipe):
    recipe(PLAIN, "far/low.toml")
    recipe('base = "far/low.toml"\n[train]\nsteps = 20', "middle.toml")
    top = recipe('base = "middle.toml"\n[train]\nseed = 3', "top.toml")
    train = read(top).recipe.train
    assert (train.steps, train.seed, train.batch_size) == (20, 3, 4)


def test_a_circle_of_bases_is_refused(recipe):
    recipe('base = "b.toml"', "a.toml")
    b = recipe('base = "a.toml"', "b.toml")
    assert "leads back to a recipe that builds on it. Break the circle." in refused(b)
    assert "leads back" in refused(recipe('base = "self.toml"', "self.toml"))


def test_json_and_toml_say_the_same(recipe):
    table = {
        "model": {"preset": "tiny"},
        "data": {"corpus": "fables"},
        "train": {"steps": 10, "batch_size": 4, "clip": None},
    }
    toml = recipe('model.preset = "tiny"\ndata.corpus = "fables"\ntrain = {steps = 10, batch_size = 4, clip = "none"}')
    assert read(recipe(json.dumps(table), "a.json")).recipe == read(toml).recipe


def test_changing_the_kind_drops_what_the_new_kind_does_not_know(recipe):
    file = recipe(
        PLAIN.replace('{kind = "gated", d_ff = 64}', '{kind = "moe", d_ff = 64, n_experts = 4, n_active = 2}')
    )
    ffn = read(file, ["model.ffn=gated"]).recipe.model.blocks[0].ffn
    assert (ffn.kind, ffn.d_ff) == ("gated", 64)
    assert refused(recipe(), ["model.ffn=moe"]).startswith("model.ffn.n_experts is missing")


def test_a_plain_word_replaces_a_word_though_parts_of_its_name_come_in_kinds(recipe):
    file = recipe(PLAIN.replace("[data]", 'embed.position = "learned"\n[data]'))
    assert read(file, ["model.embed.position=sinusoidal"]).recipe.model.embed.position == "sinusoidal"
    assert read(file, ["model.embed.position=none"]).recipe.model.embed.position == "none"
    assert read("dates", ["model.encoder.embed.position=learned"]).recipe.model.encoder.embed.position == "learned"


def test_naming_another_text_drops_what_described_the_old_one(recipe):
    data = read(recipe(), ["data.files=mine.txt"]).recipe.data
    assert (data.corpus, data.files, data.n_documents) == (None, ("mine.txt",), None)
    data = read(recipe(), ["data.corpus=python-stdlib"]).recipe.data
    assert (data.corpus, data.n_documents) == ("python-stdlib", None)
    data = read(recipe(), ["data.corpus=fables", "data.seed=3"]).recipe.data
    assert (data.corpus, data.n_documents, data.seed) == ("fables", 100, 3)
    data = read(recipe(), ["data.corpus=python-stdlib", "data.n_documents=7"]).recipe.data
    assert data.n_documents == 7
    both = refused(recipe(), ["data.corpus=fables", "data.files=a.txt"])
    assert both == "data.corpus=fables and files=a.txt are both given. Leave one out."


def test_another_tokenizer_drops_the_size_of_the_old_one(recipe):
    file = recipe(PLAIN.replace("[data]", "[data]\nvocab_size = 300"))
    assert read(file, ["data.tokenizer=characters"]).recipe.data.vocab_size == 1024
    assert "data.vocab_size=300 has no effect" in refused(file, ["data.tokenizer=characters", "data.vocab_size=300"])


def test_none_takes_a_value_away(recipe):
    file = recipe('model = {preset = "mistral-7b"}\ndata.corpus = "fables"\ntrain = {steps = 1, batch_size = 1}')
    changes = ["model.attention.window=none", "model.vocab_size=none", "train.clip=none", "model.final_norm=none"]
    loaded = read(file, changes).recipe
    assert loaded.model.blocks[0].attention.window is None
    assert loaded.model.vocab_size is None
    assert loaded.train.clip is None
    assert loaded.model.final_norm.kind == "none"


def test_none_takes_a_whole_table_away(recipe):
    table = (
        'model = {preset = "original-transformer-base"}\ndata.corpus = "fables"\ntrain = {steps = 1, batch_size = 1}'
    )
    model = read(recipe(table), ["model.encoder=none", "model.cross=none"]).recipe.model
    assert model.encoder is None
    assert model.blocks[0].cross is None
    scaled = '\n[model.attention.position]\nkind = "rope"\nscaling = {kind = "linear", factor = 2.0}'
    file = recipe(PLAIN.replace("[data]", f"{scaled}\n[data]"))
    assert read(file).recipe.model.blocks[0].attention.position.scaling.factor == 2
    assert (
        read(file, ["model.attention.position.scaling=none"]).recipe.model.blocks[0].attention.position.scaling is None
    )


# --- blocks

BLOCKS = PLAIN.replace(
    "[data]", 'pattern = ["a", "b"]\n[model.blocks.a.attention]\nwindow = 8\n[model.blocks.b]\n[data]'
)


def test_a_common_key_reaches_every_block_and_a_named_one_only_its_own(recipe):
    file = recipe(BLOCKS)
    a, b = read(file, ["model.attention.n_kv_heads=2"]).recipe.model.blocks
    assert (a.attention.n_kv_heads, b.attention.n_kv_heads) == (2, 2)
    a, b = read(file, ["model.blocks.b.attention.n_kv_heads=1"]).recipe.model.blocks
    assert (a.attention.n_kv_heads, b.attention.n_kv_heads) == (4, 1)
    assert (a.attention.window, b.attention.window) == (8, None)


def test_a_later_common_key_wins_over_an_earlier_block_s_own_and_within_a_layer_the_block_wins(recipe):
    file = recipe(BLOCKS)
    a, b = read(file, ["model.attention.window=16"]).recipe.model.blocks
    assert (a.attention.window, b.attention.window) == (16, 16)
    a, b = read(file, ["model.attention.window=16", "model.blocks.b.attention.window=4"]).recipe.model.blocks
    assert (a.attention.window, b.attention.window) == (16, 4)


def test_a_later_pattern_drops_the_blocks_that_it_does_not_name(recipe):
    model = read(recipe(BLOCKS), ["model.pattern=b"]).recipe.model
    assert [block.name for block in model.blocks] == ["b"]
    assert refused(recipe(BLOCKS.replace('"a", "b"', '"b"'))).startswith("model.blocks.a is not used")


def test_a_pattern_is_written_with_commas_on_the_command_line(recipe):
    model = read(recipe(BLOCKS), ["model.pattern=b,a,a", "model.n_layers=4"]).recipe.model
    assert [block.name for block in model.layers()] == ["b", "a", "a", "b"]


def test_an_unknown_block_on_the_command_line_is_refused_with_the_nearest(recipe):
    gemma = 'model = {preset = "gemma-3-270m"}\ndata.corpus = "fables"\ntrain = {steps = 1, batch_size = 1}'
    text = refused(recipe(gemma), ["model.blocks.globl.attention.window=3"])
    assert text == "model.blocks.globl does not exist. Did you mean model.blocks.global?"
    text = refused(recipe(), ["model.blocks.x.attention.window=3"])
    assert text == "model.blocks.x does not exist. This model has one block: write model.attention…, model.ffn…"


def test_a_new_block_on_the_command_line_comes_with_a_pattern(recipe):
    model = read(recipe(BLOCKS), ["model.blocks.c.attention.window=3", "model.pattern=a,c"]).recipe.model
    assert [block.attention.window for block in model.layers()] == [8, 3]


def test_encoders_are_merged_like_models(recipe):
    table = 'task = "spans"\nmodel = {preset = "tiny-encoder-decoder"}\ndata.corpus = "fables"\n'
    table += "train = {steps = 1, batch_size = 1}"
    model = read(recipe(table), ["model.encoder.attention.n_kv_heads=2", "model.encoder.n_layers=3"]).recipe.model
    assert model.encoder.blocks[0].attention.n_kv_heads == 2
    assert model.encoder.n_layers == 3
    assert model.blocks[0].attention.n_kv_heads == 4


def test_merging_is_associative_and_an_empty_layer_changes_nothing():
    """So a chain of bases means the same however it is cut."""
    a, b, c = {"x": 1, "t": {"u": 1, "v": 2}}, {"t": {"v": 3}}, {"x": 2, "t": {"w": 4}}
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == {"x": 2, "t": {"u": 1, "v": 3, "w": 4}}
    assert merge(a, {}) == merge({}, a) == a
    one = {"attention": {"n_heads": 4}, "ffn": "gated", "n_layers": 2}
    assert merge_stacks([one, {}]) == merge_stacks([{}, one]) == merge_stacks([one])


def test_merging_leaves_its_arguments_alone():
    low, high = {"t": {"u": {"v": 1}}}, {"t": {"u": {"w": 2}}}
    merged = merge(low, high)
    merged["t"]["u"]["x"] = 3
    assert (low, high) == ({"t": {"u": {"v": 1}}}, {"t": {"u": {"w": 2}}})


# --- origins


def test_every_value_has_an_origin_and_every_row_s_key_can_be_typed(recipe):
    for text in (PLAIN, BLOCKS):
        file = recipe(text)
        loaded = read(file)
        rows = loaded.explain()
        assert [key for key, _, _ in rows] == list(loaded.origins)
        for key, value, _ in rows:
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert read(file, [f"{key}={value}"]).recipe == loaded.recipe


def test_origins_of_blocks_kinds_and_dropped_values(recipe):
    moe = '{kind = "moe", d_ff = 64, n_experts = 4, n_active = 2, balance_weight = 0.5}'
    file = recipe(BLOCKS.replace('{kind = "gated", d_ff = 64}', moe))
    origins = read(file, ["model.blocks.a.ffn.balance=none", "model.attention.position=alibi"]).origins
    assert origins["model.blocks.a.attention.window"] == str(file)
    assert origins["model.blocks.b.attention.window"] == "default"
    assert origins["model.blocks.b.attention.position.kind"] == "command line"
    assert origins["model.blocks.a.ffn.balance"] == "command line"
    assert origins["model.blocks.a.ffn.balance_weight"] == "default"  # dropped with the balance that it served
    assert origins["model.blocks.b.ffn.balance_weight"] == str(file)
    assert origins["model.blocks.a.attention.n_kv_heads"] == "filled in (n_heads)"
    assert origins["model.pattern"] == str(file)
    assert read(recipe(PLAIN)).origins["model.pattern"] == "filled in (all blocks in turn)"


def test_a_value_that_was_asked_to_be_filled_in_says_so(recipe):
    file = recipe(PLAIN.replace("attention.n_heads = 4", "attention = {n_heads = 4, n_kv_heads = 2}"))
    assert read(file).origins["model.attention.n_kv_heads"] == str(file)
    loaded = read(file, ["model.attention.n_kv_heads=none"])
    assert loaded.recipe.model.blocks[0].attention.n_kv_heads == 4
    assert loaded.origins["model.attention.n_kv_heads"] == "filled in (n_heads)"


# --- paths


def test_a_path_in_a_recipe_starts_from_its_folder_and_one_on_the_command_line_from_here(recipe, tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "here").mkdir()
    for place in ("far/a.txt", "far/b-1.txt", "here/c.txt", "here/a.txt"):
        (tmp_path / place).write_text("text")
    text = PLAIN.replace('corpus = "fables"\nn_documents = 100', 'files = ["a.txt", "b-*.txt", "c.txt", "/d.txt"]')
    file = recipe(text, "far/plain.toml")
    monkeypatch.chdir(tmp_path / "here")
    far = tmp_path / "far"
    assert read(file).recipe.data.files == (str(far / "a.txt"), str(far / "b-*.txt"), "c.txt", "/d.txt")
    assert read(file, ["data.files=a.txt"]).recipe.data.files == ("a.txt",)
    assert read(file, ["data.files=a.txt"], root="/base").recipe.data.files == ("/base/a.txt",)
    assert read(file, ["data.tokenizer=characters"], root="/base").recipe.data.tokenizer == "characters"


# --- wrong files


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        (
            "a.toml",
            "[model\n",
            "is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 7)",
        ),
        ("a.toml", "a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        ("a.json", '{"model": }', "is not valid JSON: Expecting value: line 1 column 11 (char 10)"),
        ("a.json", "[1, 2]", "holds a list, not a table of keys"),
        ("a.yaml", "model: 1", "is not a recipe: its name must end in .toml or .json"),
        ("a.toml", "base = 3", "base=3 must be the path of another recipe"),
        ("a.toml", 'base = "nowhere.toml"', "nowhere.toml does not exist."),
        ("a.toml", "model = 5", "model=5: needs a table of keys, for example model.d_model=…"),
        ("a.toml", "[model]\nblocks = 5", "model.blocks=5: needs a table for each block"),
        ("a.toml", "", "model is missing: it has no default. Set model=…"),
        ("a.json", "[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(recipe, name, text, answer):
    assert answer in refused(recipe(text, name))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"a = '\xff'")
    assert refused(tmp_path / "a.toml").endswith("is not text in UTF-8 (byte 5)")


def test_a_missing_recipe_and_a_folder_are_refused_with_a_way_out(tmp_path):
    assert refused(tmp_path / "none.toml").startswith(f"{tmp_path / 'none.toml'} does not exist.")
    assert refused(tmp_path) == f"{tmp_path} is a folder: name the recipe in it (a .toml or .json file)"


def test_what_is_no_file_at_all_is_refused_as_what_it_is(tmp_path):
    assert refused("/dev/null") == "/dev/null is neither a file nor a folder. Give the path of a .toml or .json file."
    link = tmp_path / "loop.toml"
    link.symlink_to(link.name)
    assert refused(link) == f"{link}: {link} is a link that leads nowhere. Give the path of a .toml or .json file."
    for what in (None, {}, 5):
        assert refused(what) == (
            f"{what} is no recipe. Give a .toml or .json file, the name of one that ships, or onehop.Recipe(…)."
        )


def test_a_base_on_the_command_line_is_refused(recipe):
    text = refused(recipe(), ["base=other.toml"])
    assert text == "base=other.toml belongs in a recipe's file, not among its overrides"


def test_a_shipped_recipe_is_found_by_its_name_and_as_a_base(recipe, tmp_path, monkeypatch):
    file = recipe(PLAIN, "shipped/plain.toml")
    monkeypatch.setattr(layers, "shipped", lambda kind, name: file if (kind, name) == ("runs", "plain") else None)
    monkeypatch.setattr(layers, "shipped_names", lambda kind: ["plain"])
    assert read("plain").origins["train.steps"] == "runs/plain.toml"
    assert read(recipe('base = "plain"\ntrain.seed = 3', "mine.toml")).recipe.train.steps == 10
    assert refused("plan") == "plan does not exist. Did you mean plain?"
    assert refused("zzz.toml") == "zzz.toml does not exist. Recipes that ship: plain."


# --- whatever is typed

KEYS = sorted(known_keys(Recipe))
VALUES = [
    "none",
    "1",
    "0",
    "-1",
    "2.5",
    "true",
    "a,b",
    "rope",
    "moe",
    "layer",
    "[]",
    "{}",
    "bias",
    "local",
    '"x"',
    "",
    "1e999",
]


def test_a_fault_of_every_block_is_told_without_a_blocks_name(recipe):
    with pytest.raises(ConfigError, match=r"^model\.residual_scale=true: needs a number$"):
        read(recipe(PLAIN), ["model.residual_scale=true"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3),
    st.sampled_from(["plain", "moe", "gemma-3-270m"]),
)
def test_whatever_is_typed_gives_a_recipe_that_can_be_written_or_one_clear_line(recipe, typed, start):
    text = (
        PLAIN
        if start == "plain"
        else f'model.preset = "{start}"\ndata.corpus = "fables"\ntrain = {{steps = 1, batch_size = 1}}'
    )
    words = [f"{key.replace('NAME', 'local')}={value}" for key, value in typed]
    try:
        loaded = read(recipe(text), words)
    except ConfigError as error:
        line = str(error)
    else:
        line = ""
        assert Recipe.model_validate(tomllib.loads(to_toml(loaded.recipe))) == loaded.recipe
        assert all(origin for _, _, origin in loaded.explain())
    assert "\n" not in line


# --- floors


def test_config_never_loads_torch_nor_anything_else_that_is_slow():
    code = "import onehop.config, onehop.config.named, sys; print(*sorted(sys.modules))"
    root = Path(onehop.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "tokenizers", "matplotlib", "safetensors"} & set(done.stdout.split())


def test_reading_what_was_read_gives_the_same(recipe):
    first = read(recipe(BLOCKS)).recipe
    assert read(recipe(to_toml(first), "again.toml")).recipe == first


# --- recipes that ship


def test_the_recipe_of_the_model_that_ships_is_still_the_one_that_it_was_trained_by():
    made = json.loads((shipped("models", "fables-tiny") / "provenance.json").read_text())["recipe"]
    now = read("fables-tiny").recipe.model_dump(mode="json")
    made["model"]["vocab_size"] = None  # the tokenizer's, filled in
    del made["data"]["jsonl_field"]  # renamed since; fables are no JSON lines
    assert as_made(made, now) == made  # options that came later are not asked about


def as_made(made, now):
    """Of `now` the keys that `made` has."""
    if isinstance(made, dict):
        return {key: as_made(value, now[key]) for key, value in made.items()}
    if isinstance(made, list) and len(made) == len(now):
        return [as_made(*each) for each in zip(made, now, strict=True)]
    return now
