"""Recipes to compare, from files and from values of keys."""

import pytest

from onehop.base.errors import ConfigError
from onehop.config.sweep import from_files, from_sweep


def test_each_combination_is_an_entry_and_keys_in_one_sweep_vary_together():
    entries = from_sweep("tiny", ["train.lr=1e-3,3e-3", "model.d_model=32,64 model.ffn.d_ff=88,176"])
    found = [(e.recipe.train.lr, e.recipe.model.d_model, e.recipe.model.blocks[0].ffn.d_ff) for e in entries]
    assert found == [(1e-3, 32, 88), (1e-3, 64, 176), (3e-3, 32, 88), (3e-3, 64, 176)]
    assert entries[1].name == "train.lr=1e-3,model.d_model=64,model.ffn.d_ff=176"


def test_lists_are_not_cut_at_their_own_commas():
    entries = from_sweep("tiny", ["train.betas=[0.9,0.95],[0.8,0.99]"])
    assert [e.recipe.train.betas for e in entries] == [(0.9, 0.95), (0.8, 0.99)]


def test_swept_numbers_of_steps_are_budgets_of_their_own():
    entries = from_sweep("tiny", ["train.steps=10,20", "model.d_model=32,64"])
    assert [e.share for e in entries] == ["train.steps=10", "train.steps=10", "train.steps=20", "train.steps=20"]
    assert {e.share for e in from_sweep("tiny", ["model.d_model=32,64"])} == {""}


def test_files_of_the_same_name_are_told_apart(tmp_path):
    (tmp_path / "tiny.toml").write_text('base = "tiny"\n')
    assert [e.name for e in from_files(["tiny", str(tmp_path / "tiny.toml")], ["train.steps=3"])] == ["tiny", "tiny~2"]


@pytest.mark.parametrize(
    ("sweeps", "text"),
    [
        (["train.lr"], "write key=value,value"),
        ([""], "is empty"),
        (["train.lr=1e-3,1e-3"], "train.lr=1e-3 is there twice"),
        (["train.lr=1e-3", "train.lr=2e-3"], "gives train.lr twice"),
        (["train.lr=1,2 train.steps=1"], "2 of train.lr, 1 of train.steps"),
        (["train.seed=1,2"], "Use --seeds N"),
        (["out=a,b"], "folder of its own"),
        (["train.ler=1"], "--sweep train.ler=1: .*train.lr"),
        (["train.lr=-1"], "--sweep train.lr=-1: train.lr"),
    ],
)
def test_a_sweep_that_says_nothing_is_refused(sweeps, text):
    with pytest.raises(ConfigError, match=text):
        from_sweep("tiny", sweeps)
