"""A run: taken up again bit for bit, never over another one, and refused without leaving anything behind."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import onehop
from onehop.base.errors import CheckpointError, ConfigError, DataError, OnehopError
from onehop.config import Recipe
from onehop.config.keys import known_keys
from onehop.training import Trainer, unchanged
from onehop.training.checkpoints import FOLDER, Checkpoints
from onehop.training.folder import check_out, clear, nothing_left
from tests.training.small_runs import recipe, sentences

DROPOUT = {"dropout": {"embed": 0.1, "attention": 0.1, "residual": 0.1}}
MOE = {"ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance": "bias"}}
KINDS = {
    "plain": {},
    "dropout": {"model": DROPOUT},
    "micro-batches": {"model": DROPOUT, "micro_batch": 2},
    "experts": {"model": MOE},
    "muon": {"optimizer": "muon"},
    "muon, experts": {"optimizer": "muon", "model": MOE},
    "a growing batch": {"micro_batch": 1, "batch_start": 1, "batch_warmup": 8},
    "wsd, an average, recomputed": {"model": DROPOUT, "schedule": "wsd", "ema": 0.9, "recompute": "block"},
    "16 bits": {"precision": "bfloat16"},
    "a stream": {"data": {"packing": "stream"}},
    "documents joined": {"data": {"documents": "joined"}},
    "float16": {"precision": "float16"},
}


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def moments(trainer):
    return [dict(trainer.optimizer.state[p]) for p in trainer.model.parameters()]


def same(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("kind", KINDS)
def test_stopping_and_resuming_equals_going_on_bit_for_bit(tmp_path, kind):
    """Weights, moments, losses and learning rates; twice from the same file; over the end of an epoch."""
    whole = Trainer(recipe(tmp_path, **KINDS[kind], steps=12))
    losses = [(result.loss, result.lr) for result in whole.steps()]
    assert 12 * whole.recipe.train.batch_size > whole.loader.n_rows  # more than one epoch

    first = Trainer(recipe(tmp_path, **KINDS[kind], steps=12), fresh=True)
    steps = first.steps()
    head = [(result.loss, result.lr) for _, result in zip(range(5), steps, strict=False)]
    first.save()
    steps.close()
    for _ in range(2):
        again = Trainer(recipe(tmp_path, **KINDS[kind], steps=12), resume=True)
        tail = [(result.loss, result.lr) for result in again.steps()]
        assert head + tail == losses
        assert same(weights(again), weights(whole))
        assert all(same(a, b) for a, b in zip(moments(again), moments(whole), strict=True))
        assert again.alarms.about() == whole.alarms.about()
        if whole.scaler is not None:
            assert again.scaler.state_dict() == whole.scaler.state_dict()
        assert replace(again.progress, seconds=0.0) == replace(whole.progress, seconds=0.0)


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path):
    found = []
    for seed in (0, 0, 1):
        trainer = Trainer(recipe(tmp_path, seed=seed), fresh=True)
        found.append(([result.loss for result in trainer.steps()], weights(trainer)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])
    assert found[0][0] != found[2][0]


def test_a_run_goes_on_when_its_steps_are_raised(tmp_path):
    first = Trainer(recipe(tmp_path, steps=3))
    list(first.steps())
    first.save()
    more = Trainer(recipe(tmp_path, steps=5, eval_every=5), resume=True)
    assert more.notes == ["train.eval_every was 3 and is now 5", "train.steps was 3 and is now 5"]
    assert [result.step for result in more.steps()] == [4, 5]


def test_what_changes_the_numbers_of_a_resumed_run_is_named_and_needs_a_word(tmp_path, monkeypatch):
    """Keys of the recipe that the state survives, and the machine: threads here, so of versions and processors too."""
    first = Trainer(recipe(tmp_path))
    first.save()
    real = unchanged.machine
    monkeypatch.setattr(unchanged, "machine", lambda device: real(device) | {"threads": 64})
    changed = recipe(tmp_path, lr=5e-3, precision="bfloat16")
    with pytest.raises(ConfigError) as refused:
        Trainer(changed, resume=True)
    lines = [
        "train.lr was 0.01 and is now 0.005",
        "train.precision was float32 and is now bfloat16",
        "precision was float32 and is now bfloat16",
        f"threads was {torch.get_num_threads()} and is now 64",
    ]
    assert str(refused.value) == (
        f"{tmp_path / 'out'} cannot be resumed bit for bit: {'; '.join(lines)}. Go back to what it was, or add "
        "--allow-changes to go on all the same (in Python: allow_changes=True)."
    )
    assert Trainer(changed, resume=True, allow_changes=True).notes == lines


def test_every_key_that_may_change_freely_is_one_of_the_recipe():
    known = known_keys(Recipe).keys()
    assert known >= unchanged.FREE
    assert known >= unchanged.IN_THE_TEXT
    assert unchanged.FIXED - {"text", "base"} <= known


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": {"d_model": 8}}, "model.d_model=8"),
        ({"model": {"n_layers": 1}}, "model.n_layers=1"),
        ({"batch_size": 2}, "train.batch_size=2"),
        ({"seed": 5}, "train.seed=5"),
        ({"context": 16}, "train.context=16"),
        ({"data": {"packing": "stream"}}, "data.packing=stream"),
        ({"data": {"documents": "joined"}}, "data.documents=joined"),
        ({"optimizer": "muon"}, "train.optimizer=muon"),
        ({"data": {"validation": 0.2}}, "the text has changed"),
    ],
)
def test_a_resumed_run_may_not_change_its_model_or_the_order_of_its_text(tmp_path, change, key):
    first = Trainer(recipe(tmp_path))
    first.save()
    with pytest.raises(ConfigError, match=key):
        Trainer(recipe(tmp_path, **change), resume=True)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json", "merges.txt",
        "recipe.toml", "metrics.jsonl", "report.html", "provenance.json",
    ],
)  # fmt: skip
def test_files_of_somebody_that_a_run_would_replace_stay(tmp_path, name, fresh):
    file = tmp_path / "out" / name
    file.parent.mkdir()
    file.write_text("# mine")
    with pytest.raises(ConfigError, match=rf"holds no run, but {name}, which this one would replace\. Set out=OTHER"):
        Trainer(recipe(tmp_path), fresh=fresh)
    assert {path.name: path.read_text() for path in file.parent.iterdir()} == {name: "# mine"}


@pytest.mark.parametrize("place", ["out", "out/data", "out/data/texts"])
def test_a_text_where_the_run_writes_is_refused(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "text.txt").write_text(sentences())
    with pytest.raises(ConfigError, match=r"is where the run writes, with out=.*: its files would be taken for text"):
        Trainer(recipe(tmp_path, data={"files": [str(tmp_path / place)]}))
    Trainer(recipe(tmp_path, data={"files": [str(tmp_path / place / "text.txt")]}))


@pytest.mark.parametrize("inside", ["", "run"])
def test_links_that_lead_nowhere_are_refused_in_one_line(tmp_path, inside):
    """Round in a circle, where the text, the model or the run should be."""
    loop, file = tmp_path / "loop", recipe(tmp_path).data.files[0]
    loop.symlink_to("loop")
    for wanted, words in (
        (recipe(tmp_path).model_copy(update={"out": str(loop / inside)}), r"Mend it, or set out=OTHER\.$"),
        (recipe(tmp_path, data={"files": [file, str(loop / inside)]}), "Mend it, or leave it out"),
    ):
        with pytest.raises(OnehopError, match=rf"loop is a link that leads nowhere\. {words}"):
            Trainer(wanted)
    from_it = recipe(tmp_path)
    from_it = from_it.model_copy(update={"tune": from_it.tune.model_copy(update={"init": str(loop / inside)})})
    with pytest.raises(OnehopError, match="loop"):
        Trainer(from_it)
    assert not (tmp_path / "out").exists()


def test_a_run_below_its_folder_of_texts_is_resumed_and_repeated_on_the_same_text(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text.txt").write_text(sentences())
    wanted = recipe(tmp_path, data={"files": [str(tmp_path / "mine")]}).model_copy(
        update={"out": str(tmp_path / "mine" / "run")}
    )
    first = onehop.train(wanted).trainer
    for how in ({"resume": True}, {"fresh": True}):
        assert Trainer(wanted, **how).data.identity == first.data.identity


@pytest.mark.parametrize("neighbour", [False, True])
def test_a_run_that_is_refused_removes_its_own_folder_and_no_other(tmp_path, neighbour):
    out = tmp_path / "new" / "out" / "a"
    beside = tmp_path / "new" / "out" / "b" / "checkpoints"
    with pytest.raises(ValueError, match="refused"), nothing_left(out):
        (out / "data").mkdir(parents=True)
        if neighbour:
            beside.mkdir(parents=True)
        raise ValueError("refused")
    assert not out.exists()
    assert beside.exists() == neighbour == (tmp_path / "new").exists()


def test_a_recipe_that_was_written_by_a_run_is_its_own_until_somebody_changes_it(tmp_path):
    Trainer(recipe(tmp_path))
    Trainer(recipe(tmp_path))
    file = tmp_path / "out" / "recipe.toml"
    file.write_text(file.read_text() + "# mine")
    with pytest.raises(ConfigError, match=r"recipe\.toml, which this one would replace"):
        Trainer(recipe(tmp_path))


def test_a_folder_that_holds_a_run_is_refused_without_a_word_for_it(tmp_path):
    first = Trainer(recipe(tmp_path))
    list(first.steps())
    Trainer(recipe(tmp_path))  # nothing was saved yet
    first.save()
    with pytest.raises(ConfigError, match=r"holds a run already: go on with --resume, replace it with --fresh"):
        Trainer(recipe(tmp_path))
    with pytest.raises(ConfigError, match="give one of them"):
        Trainer(recipe(tmp_path), resume=True, fresh=True)
    fresh = Trainer(recipe(tmp_path), fresh=True)
    assert fresh.progress.step == 0
    assert not (tmp_path / "out" / FOLDER).exists()


@pytest.mark.parametrize("how", [{}, {"fresh": True}])
def test_a_fresh_run_that_is_killed_before_its_first_save_leaves_a_folder_to_start_in(tmp_path, how):
    """The model that the run before it had shown there belongs to nobody any more: it would be taken for another's."""
    onehop.train(recipe(tmp_path, ema=0.9))
    Trainer(recipe(tmp_path), fresh=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "recipe.toml"]
    assert onehop.train(recipe(tmp_path), **how).step == 6


@pytest.mark.parametrize("saved", [True, False])
def test_a_folder_that_is_cleared_counts_as_a_run_until_nothing_of_it_is_left(tmp_path, monkeypatch, saved):
    """A kill at each file that is removed: --fresh goes on from what is left."""
    wanted, out, whole = recipe(tmp_path, steps=1, ema=0.9), tmp_path / "out", tmp_path / "whole"
    onehop.train(wanted)
    if not saved:
        shutil.rmtree(out / FOLDER)
    out.rename(whole)
    real, left = Path.unlink, [0]

    def killed(path, **more):
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError
        real(path, **more)

    monkeypatch.setattr(Path, "unlink", killed)
    for n_removed in range(len(list(whole.iterdir())) - 2):  # all but folders and the recipe are files of the run
        shutil.copytree(whole, out, symlinks=True)
        left[0] = n_removed
        with suppress(ZeroDivisionError):
            clear(out, Checkpoints(out, keep=1))
        check_out(wanted, resume=False, fresh=True)
        shutil.rmtree(out)


def test_a_fresh_run_that_is_refused_leaves_the_old_one(tmp_path):
    first = Trainer(recipe(tmp_path))
    first.save()
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    with pytest.raises(OnehopError):
        Trainer(recipe(tmp_path, data={"files": [str(tmp_path / "missing.txt")]}), fresh=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    Trainer(recipe(tmp_path), resume=True)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"text": "short.\nbrief.\n"}, DataError, "fewer than one row"),
        ({"text": ""}, DataError, "no text"),
        ({"data": {"files": ["nowhere.txt"]}}, DataError, "does not exist"),
        ({"sample": "a fox " * 40}, ConfigError, "train.sample has"),
        ({"model": {"vocab_size": 5}}, ConfigError, "vocab_size=5 is too small"),
        ({"device": "cuda"}, ConfigError, "train.device=cuda is not there. This machine has: cpu"),
    ],
)
def test_a_refused_recipe_leaves_nothing_behind(tmp_path, options, error, text):
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(error, match=text) as refused:
        Trainer(recipe(tmp_path, **options))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_resuming_needs_a_state(tmp_path):
    with pytest.raises(CheckpointError, match="holds nothing to resume"):
        Trainer(recipe(tmp_path), resume=True)
    Trainer(recipe(tmp_path)).save()
    state = tmp_path / "out" / FOLDER / "step-00000000" / "optimizer.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"is damaged \(optimizer.safetensors differs .* no whole one is left"):
        Trainer(recipe(tmp_path), resume=True)


def test_what_a_killed_save_left_is_removed(tmp_path):
    Trainer(recipe(tmp_path)).save()
    torn = tmp_path / "out" / ".state.0123abcd.safetensors"
    torn.write_bytes(b"half of a state")
    notes = tmp_path / "out" / ".notes.txt"
    notes.write_text("mine")
    Trainer(recipe(tmp_path), resume=True)
    assert not torn.exists()
    assert notes.exists()


def test_a_diverged_run_ends_with_a_word_of_advice(tmp_path):
    trainer = Trainer(recipe(tmp_path, steps=100))
    with torch.no_grad():
        trainer.model.final_norm.weight.fill_(float("nan"))
    with pytest.raises(OnehopError, match=r"run has diverged. Lower train.lr=0.01, or raise train.warmup=2"):
        list(trainer.steps())
    assert trainer.progress.step == trainer.progress.skipped == 20


def test_a_validation_loss_that_is_no_number_ends_the_run_and_leaves_what_was_saved(tmp_path):
    """It would stand in metrics.jsonl as a NaN that JSON lacks, and damaged weights would replace the saved ones."""
    trainer = Trainer(recipe(tmp_path))
    with torch.no_grad():
        trainer.model.final_norm.weight.fill_(float("nan"))
    with pytest.raises(OnehopError, match=r"^the validation loss after step 0 is nan: the run has diverged\. Lower"):
        trainer.evaluate()
    assert trainer.progress.best_val_loss is None


def test_a_change_to_the_model_between_steps_is_a_change_to_the_run(tmp_path):
    trainer = Trainer(recipe(tmp_path))
    frozen = trainer.model.layers[0].attention.wq.weight
    before = frozen.clone()
    for result in trainer.steps():
        if result.step == 2:
            frozen.requires_grad_(False)
            at_2 = frozen.clone()
    assert not torch.equal(at_2, before)
    assert torch.equal(frozen, at_2)


def test_provenance_says_what_made_the_model(tmp_path):
    trainer = Trainer(recipe(tmp_path))
    list(trainer.steps())
    trainer.save()
    trainer.add_to_report(val_loss=1.5)
    told = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert told["step"] == 6
    assert told["tokens_seen"] == trainer.progress.tokens
    assert told["recipe"]["train"]["lr"] == 1e-2
    assert told["val_loss"] == 1.5


def test_another_text_replaces_the_shards_of_a_fresh_run(tmp_path):
    Trainer(recipe(tmp_path)).save()
    (tmp_path / "text.txt").write_text(sentences(seed=1))
    fresh = Trainer(recipe(tmp_path), fresh=True)
    assert [path.resolve() for path in (tmp_path / "out" / "data").iterdir()] == [fresh.data.folder.resolve()]


def test_a_fresh_run_leaves_what_is_not_its_own(tmp_path):
    """`out` may be a project whose own texts lie in data/: only shards, which bear a name of 16 hex digits, go."""
    raw = tmp_path / "out" / "data" / "raw"
    raw.mkdir(parents=True)
    (raw / "precious.txt").write_text("mine")
    old = raw.parent / "0123456789abcdef"
    old.mkdir()
    Trainer(recipe(tmp_path), fresh=True)
    assert (raw / "precious.txt").read_text() == "mine"
    assert not old.exists()
