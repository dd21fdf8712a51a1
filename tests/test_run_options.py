"""No dead option, continued: every field of `data` and of `train` changes the run, or is refused in words."""

import json
from pathlib import Path

import pytest
import torch

import onehop
from onehop.base.errors import OnehopError
from onehop.config import DataConfig, Recipe, TrainConfig
from onehop.config.task import TASKS
from onehop.config.tune import LoRAConfig, TuneConfig
from onehop.model import recompute
from onehop.model.transformer import Transformer
from onehop.training import loss, session
from onehop.training.trainer import Trainer
from tests.training.small_runs import recipe, sentences

# field -> another value than the run below has
TRAIN = {
    "steps": 2, "batch_size": 4, "micro_batch": 1, "context": 16, "optimizer": "muon", "lr": 2e-2, "lr_end": 0.5,
    "warmup": 2, "weight_decay": 0.5, "betas": (0.8, 0.95), "eps": 1e-2, "clip": 0.01, "seed": 1,
    "precision": "bfloat16", "kernel": "plain", "eval_every": 2, "eval_rows": 1, "save_every": 1, "log_every": 3,
    "sample": "a fox", "sample_tokens": 2, "weight_decay_on": ["head"], "schedule": "constant", "ema": 0.5,
    "z_loss": 0.1, "width_transfer": 8, "recompute": "block", "loss_chunk": 8, "compile": "yes",
    "deterministic": True,
}  # fmt: skip
# field -> another value, and what it needs beside it
TOGETHER = {
    "decay": (0.9, {"schedule": "wsd"}), "decay_shape": ("sqrt", {"schedule": "wsd", "decay": 0.9}),
    "batch_start": (1, {"micro_batch": 1, "batch_warmup": 2, "batch_start": 2}),
    "batch_warmup": (2, {"micro_batch": 1, "batch_start": 1, "batch_warmup": 1}),
}  # fmt: skip
# Fields that bite where something goes wrong or is installed, and the tests that show it.
ELSEWHERE = {
    "device": "test_a_device_is_used_or_said_to_be_missing",
    "keep": "test_the_newest_and_the_best_stay",
    "max_skipped": "test_so_many_broken_steps_in_a_row_end_the_run_also_over_a_resume",
    "spike": "test_a_spike_in_a_run_is_told_where_the_recipe_draws_the_line",
    "dead_after": "test_a_dead_expert_is_told_and_its_load_stands_in_the_metrics",
    "measure_peak": "test_a_run_tells_the_share_of_the_measured_peak_in_its_line_its_metrics_and_its_report",
    "wandb": "test_weights_and_biases_hears_every_line_under_one_id_also_after_a_resume",
    "tensorboard": "test_tensorboard_that_is_not_installed_is_named_with_its_extra_before_anything_is_read",
}
SHORT = {
    "steps": 3, "batch_size": 2, "warmup": 0, "eval_every": 3, "eval_rows": 2, "log_every": 1, "sample_tokens": 4,
    "kernel": "tiled",
}  # fmt: skip
DATA = {
    "files": ["other.txt"], "n_documents": 50, "separator": ".", "tokenizer": "characters", "vocab_size": 270,
    "validation": 0.2, "packing": "stream", "seed": 1, "deduplicate": True, "documents": "joined",
}  # fmt: skip


def what_a_run_does(folder, monkeypatch, **train):
    """The numbers it writes, what it says, how often it computes and saves, and the weights that it leaves."""
    done = []

    def noted(cls, name, what):
        real = getattr(cls, name)

        def method(self, *args, **options):
            done.append(what(*args, **options))
            return real(self, *args, **options)

        monkeypatch.setattr(cls, name, method)

    noted(Trainer, "save", lambda **o: "save")
    noted(
        Transformer,
        "states",
        lambda tokens, **o: (
            tuple(tokens.shape),
            o.get("kernel"),
            torch.is_autocast_enabled("cpu"),
            torch.are_deterministic_algorithms_enabled(),
        ),
    )

    def heard(module, name, what, real=None):
        real = real or getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **o: done.append(what(**o)) or real(*a, **o))

    heard(recompute, "checkpoint", lambda **o: ("again", "context_fn" in o))
    heard(loss, "surprise", lambda **o: ("chunk", o["chunk"]))
    heard(torch, "compile", lambda **o: "compile", real=lambda function, **o: function)  # which takes a minute
    monkeypatch.setattr(session, "draw_losses", lambda *a, **o: None)
    run = onehop.train(recipe(folder, model={"n_layers": 1}, **{**SHORT, **train}))
    monkeypatch.undo()
    rows = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    said = (run.out / "samples.txt").read_text()
    weights = {name: t.tolist() for name, t in run.model.state_dict().items()}
    return done, [{**row, "tokens_per_s": None, "memory": None} for row in rows], said, weights


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return what_a_run_does(tmp_path_factory.mktemp("usual"), patch)


def test_two_equal_runs_do_the_same(usual, tmp_path, monkeypatch):
    assert what_a_run_does(tmp_path, monkeypatch) == usual


@pytest.mark.parametrize("field", TRAIN)
def test_every_field_of_train_changes_the_run(usual, tmp_path, monkeypatch, field):
    assert what_a_run_does(tmp_path, monkeypatch, **{field: TRAIN[field]}) != usual


@pytest.mark.parametrize("field", TOGETHER)
def test_fields_that_need_others_change_the_run_that_has_those(tmp_path, monkeypatch, field):
    value, others = TOGETHER[field]
    found = []
    for name, own in (("usual", {}), ("changed", {field: value})):
        (tmp_path / name).mkdir()
        found.append(what_a_run_does(tmp_path / name, monkeypatch, **{**others, **own}))
    assert found[0] != found[1]


def test_only_the_way_changes_where_the_result_must_not(usual, tmp_path, monkeypatch):
    """Micro-batches and kernels: other passes, the same weights up to rounding."""
    ways = (
        {"micro_batch": 1},
        {"kernel": "plain"},
        {"recompute": "block"},
        {"recompute": "selective"},
        {"loss_chunk": 8},
    )
    for i, change in enumerate(ways):
        (tmp_path / str(i)).mkdir()
        done, _, _, weights = what_a_run_does(tmp_path / str(i), monkeypatch, **change)
        assert done != usual[0]
        for name, value in weights.items():
            torch.testing.assert_close(
                torch.tensor(value), torch.tensor(usual[3][name]), atol=2e-3, rtol=0
            )  # 3 Adam steps


def test_a_device_is_used_or_said_to_be_missing(tmp_path):
    for device, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if there:
            assert Trainer(recipe(tmp_path / device, device=device)).device.type == device
        else:
            with pytest.raises(OnehopError, match=rf"^train\.device={device} is not there\. This machine has: cpu"):
                Trainer(recipe(tmp_path, device=device))


def what_a_text_becomes(folder, **data):
    """The tokenizer, both sides of the split, and the first rows."""
    trainer = Trainer(recipe(folder, data=data, context=24))
    held = trainer.data
    batch = trainer.placed(trainer.loader.batch(0))
    tokens = [side.tokens[:].tolist() for side in (held.train, held.validation)]
    return trainer.tokenizer.vocab_size, tokens, batch.tokens.tolist(), batch.doc.tolist()


@pytest.mark.parametrize("field", DATA)
def test_every_field_of_data_changes_the_text(tmp_path, field):
    folders = tmp_path / "usual", tmp_path / "changed"
    for folder in folders:
        folder.mkdir()
    (tmp_path / "other.txt").write_text(sentences(seed=1))
    value = [str(tmp_path / "other.txt")] if field == "files" else DATA[field]
    more = {"vocab_size": DataConfig.model_fields["vocab_size"].default} if field == "tokenizer" else {}
    assert what_a_text_becomes(folders[1], **{field: value}, **more) != what_a_text_becomes(folders[0])


def test_a_corpus_takes_the_place_of_files(tmp_path):
    own = {"files": [], "separator": None, "corpus": "fables", "n_documents": 40, "vocab_size": 300}
    assert "fables" in Trainer(recipe(tmp_path, data=own)).data.description


def test_the_field_of_json_lines_is_the_one_that_is_read(tmp_path):
    lines = [json.dumps({"text": line, "story": line[::-1]}) for line in sentences().splitlines()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = {"files": [str(tmp_path / "a.jsonl")], "separator": None, "tokenizer": "characters", "vocab_size": 1024}
    seen = []
    for field in ("text", "story"):
        (tmp_path / field).mkdir()
        seen.append(what_a_text_becomes(tmp_path / field, text_field=field, **data))
    assert seen[0] != seen[1]


def test_a_mixture_takes_the_place_of_files_and_its_weights_say_who_gives_a_row(tmp_path):
    (tmp_path / "other.txt").write_text(sentences(seed=1))
    (tmp_path / "text.txt").write_text(sentences())
    found = []
    for weight in (1, 3):
        mixture = {
            "a": {"files": [str(tmp_path / "text.txt")], "separator": "\n", "weight": weight},
            "b": {"files": [str(tmp_path / "other.txt")], "separator": "\n"},
        }
        (tmp_path / str(weight)).mkdir()
        own = {"files": [], "separator": None, "mixture": mixture}
        trainer = Trainer(recipe(tmp_path / str(weight), data=own, batch_size=8))
        assert trainer.data.train.shares == (weight / (weight + 1), 1 / (weight + 1))
        found.append(trainer.loader.batch(0).tokens.tolist())
    assert found[0] != found[1]


def test_a_streamed_text_has_the_same_tokenizer_and_validation_side_and_no_shards_of_the_rest(tmp_path):
    whole, live = (
        Trainer(recipe(make(tmp_path / str(stream)), data={"stream": stream}, context=24)) for stream in (False, True)
    )
    assert live.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert live.data.validation.tokens.tolist() == whole.data.validation.tokens.tolist()
    assert (whole.data.folder / "train.bin").is_file()
    assert not (live.data.folder / "train.bin").exists()
    rows = [{tuple(row) for i in range(10) for row in t.loader.batch(i).tokens.tolist()} for t in (whole, live)]
    assert rows[0] & rows[1]


def make(folder):
    folder.mkdir()
    return folder


def test_every_field_of_a_run_is_turned_by_a_test_here():
    tests = "".join(file.read_text() for file in Path(__file__).parent.rglob("test_*.py"))
    assert all(f"def {test}(" in tests for test in ELSEWHERE.values())
    assert TRAIN.keys() | TOGETHER.keys() | ELSEWHERE.keys() == TrainConfig.model_fields.keys()
    assert DATA.keys() | {"corpus", "text_field", "mixture", "stream"} == DataConfig.model_fields.keys()
    assert Recipe.model_fields.keys() == {"out", "about", "model", "data", "task", "tune", "train"}
    # tasks, and what a run goes on from: tests/training/test_tasks.py and test_tune.py
    assert {kind: set(TASKS.get(kind).model_fields) - {"kind"} for kind in TASKS} == {
        "next": set(),
        "chat": {"template"},
        "pairs": {"source", "target"},
        "spans": {"rate", "mean_span"},
        "masked": {"rate", "as_mask", "as_random"},
    }
    assert TuneConfig.model_fields.keys() == {"init", "freeze", "lora"}
    assert LoRAConfig.model_fields.keys() == {"rank", "alpha", "targets"}


@pytest.mark.parametrize(
    ("table", "values", "text"),
    [
        ("train", {"micro_batch": 3}, "micro_batch=3 must divide train.batch_size=4"),
        ("train", {"betas": (0.9, 1.0)}, "must lie in [0, 1)"),
        ("train", {"decay": 2.5, "schedule": "wsd"}, "decay=2.5 is neither a share nor a number of steps"),
        ("train", {"decay": 0.5}, "decay=0.5 has no effect: it needs schedule=wsd"),
        ("train", {"lr_end": 0.5, "schedule": "constant"}, "lr_end=0.5 has no effect"),
        ("train", {"batch_start": 2}, "batch_start=2 and train.batch_warmup=0 go together"),
        ("train", {"batch_start": 2, "batch_warmup": 3}, "batch_start=2 must be whole micro-batches of 4 rows"),
        ("train", {"weight_decay_on": ["layers"]}, "weight_decay_on"),
        ("train", {"weight_decay_on": [], "weight_decay": 0.3}, "weight_decay=0.3 has no effect: it needs"),
        ("train", {"sample": "a fox", "sample_tokens": 0}, "sample=a fox has no effect: it needs sample_tokens"),
        ("train", {"context": 64}, "train.context=64 is longer than model.max_len=32"),
        ("data", {"tokenizer": "characters", "vocab_size": 300}, "vocab_size=300 has no effect: it needs"),
        ("data", {"corpus": "fables"}, "are both given. Leave one out."),
        ("model", {"encoder": {"n_layers": 1, "attention": {"n_heads": 2, "sees": "all"},
                               "ffn": {"kind": "plain", "d_ff": 8}}, "cross": {"n_heads": 2}}, "encoder"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_before_anything_is_read(tmp_path, table, values, text):
    with pytest.raises(OnehopError) as refused:
        Trainer(recipe(tmp_path, **(values if table == "train" else {table: values})))
    assert text in str(refused.value)
    assert not (tmp_path / "out").exists()
