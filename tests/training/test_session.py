"""A whole run and what it leaves: metrics, samples, a curve, a model; also if it is stopped, killed or out of space."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from rich.console import Console

import onehop
from onehop.base.errors import OnehopError
from onehop.training import session
from onehop.training.checkpoints import FOLDER
from onehop.training.samples import drop_samples, write_sample
from onehop.training.session import best_possible, validation_cuts
from onehop.training.trainer import Trainer
from tests.training.small_runs import recipe

KEYS = {"step", "tokens", "loss", "lr", "tokens_per_s", "memory", "grad_norm", "grad_norms"}


def lines(folder):
    return [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]


def told(**options):
    return Console(file=io.StringIO(), width=200, **options)


def test_a_run_leaves_metrics_samples_a_curve_and_a_model(tmp_path):
    console = told()
    run = onehop.train(recipe(tmp_path), console=console)
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3, 4, 6]
    for row in lines(tmp_path):
        assert row.keys() == (KEYS | {"val_loss"} if row["step"] in (3, 6) else KEYS)
    assert lines(tmp_path)[-1]["val_loss"] == run.val_loss
    assert lines(tmp_path)[-1]["tokens"] == run.trainer.progress.tokens
    samples = (run.out / "samples.txt").read_text()
    assert samples.count("--- step ") == 2
    assert (run.out / "loss.png").read_bytes().startswith(b"\x89PNG")
    lm = onehop.load(run.out)
    tokens = torch.arange(10).unsqueeze(0)
    assert torch.equal(lm.model(tokens), run.model.eval()(tokens))
    text = console.file.getvalue()
    assert "text: " in text
    assert "step 3: validation loss" in text
    assert "trained 6 steps in " in text
    assert re.search(r"^time: \d+ s in steps, \d+ s for all besides", text, re.MULTILINE)


def test_a_run_without_a_compiler_says_so_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.compiled.no_compiler", lambda device: "there is none here")
    console = told()
    run = onehop.train(recipe(tmp_path, steps=2, compile="yes"), console=console)
    assert run.step == 2
    assert console.file.getvalue().count("not compiled: there is none here") == 1


def test_the_loss_of_a_fresh_model_is_that_of_guessing(tmp_path):
    """ln V, give or take the size of fresh logits (init_std · √width = 0.08)."""
    first = next(onehop.steps(recipe(tmp_path)))
    vocabulary = first.trainer.tokenizer.vocab_size
    assert first.loss == pytest.approx(np.log(vocabulary), abs=0.1)


def test_a_model_learns_its_text(tmp_path):
    """Each sentence makes three choices of three, ln 27 = 3.3 nats, whatever its number of tokens."""
    run = onehop.train(recipe(tmp_path, steps=100, lr=2e-2, eval_every=100, eval_rows=100, sample_tokens=0))
    held = run.trainer.data.validation
    assert run.val_loss * held.n_targets / held.n_documents < 1.5 * np.log(27)


def test_steps_are_the_steps_of_the_run(tmp_path):
    losses = [step.loss for step in onehop.steps(recipe(tmp_path, log_every=1))]
    onehop.train(recipe(tmp_path, log_every=1), fresh=True)
    assert [row["loss"] for row in lines(tmp_path)] == losses


def test_a_loop_of_ones_own_may_run_again_as_long_as_it_saves_nothing(tmp_path):
    for _ in range(2):
        assert [step.step for step in onehop.steps(recipe(tmp_path, steps=2))] == [1, 2]


def test_a_run_of_no_steps_evaluates_and_saves_the_fresh_model(tmp_path):
    run = onehop.train(recipe(tmp_path, steps=0))
    assert run.step == 0
    assert run.val_loss > 0
    assert (run.out / "model.safetensors").exists()


@pytest.fixture
def stop_at_4(monkeypatch):
    """Ctrl-C while step 4 runs."""
    real, before = session.Session._after_step, signal.getsignal(signal.SIGINT)  # ignored by a job in the background

    def pressing(self, result):
        if result.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, result)

    monkeypatch.setattr(session.Session, "_after_step", pressing)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def without_time(rows):
    return [{k: v for k, v in row.items() if k not in ("tokens_per_s", "memory")} for row in rows]


def test_ctrl_c_ends_the_run_after_the_step_and_saves_it(tmp_path, stop_at_4, monkeypatch):
    console = told()
    run = onehop.train(recipe(tmp_path), console=console)
    assert run.interrupted
    assert run.step == 4
    assert "stopped at step 4 of 6 and saved; go on with --resume" in console.file.getvalue()
    assert (run.out / "model.safetensors").exists()
    monkeypatch.undo()
    console = told()
    resumed = onehop.train(recipe(tmp_path), resume=True, console=console)
    assert "going on from step 4 of 6" in console.file.getvalue()
    assert not resumed.interrupted
    assert "trained 2 steps more, 6 in all, in " in console.file.getvalue()
    there = lines(tmp_path)
    whole = onehop.train(recipe(tmp_path), fresh=True)
    assert without_time(there) == without_time(lines(tmp_path))
    assert resumed.val_loss == whole.val_loss


def test_a_second_ctrl_c_ends_it_at_once(tmp_path, monkeypatch):
    def pressing(self, result):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(session.Session, "_after_step", pressing)
    with pytest.raises(KeyboardInterrupt):
        onehop.train(recipe(tmp_path))


def test_a_run_that_was_killed_goes_on_from_its_last_save_without_doubled_lines(tmp_path):
    """Killed after step 5, saved at step 3: what was written in between is written again, once."""

    class Killed(BaseException):
        pass

    def dying(self, result):
        real(self, result)
        if result.step == 5:
            raise Killed

    real = session.Session._after_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.Session, "_after_step", dying)
        with pytest.raises(Killed):
            onehop.train(recipe(tmp_path, log_every=1, eval_every=2, save_every=3))
    with (tmp_path / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "tok')  # a line that was being written
    onehop.train(recipe(tmp_path, log_every=1, eval_every=2, save_every=3), resume=True)
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "out" / "samples.txt").read_text().count("--- step 4") == 1


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ([1, 2], ["metrics.jsonl: lines of steps 3-4 are missing"]),
        ([1, 2, 3], ["metrics.jsonl: the line of step 4 is missing"]),
        ([1, 4], ["metrics.jsonl: 2 of the lines up to step 4 are missing"]),
        ([], ["metrics.jsonl: lines of steps 1-4 are missing"]),
        (None, ["metrics.jsonl: lines of steps 1-4 are missing"]),
        ([1, 2, 3, 4], []),
    ],
)
def test_lines_that_are_gone_are_told_once_when_the_run_goes_on(tmp_path, left, told):
    """And the run that goes on remembers the lines that there are."""
    options = {"log_every": 1, "eval_every": 2, "warmup": 1}
    run = onehop.train(recipe(tmp_path, steps=4, **options))
    file = run.out / "metrics.jsonl"
    kept = [row for row in file.read_text().splitlines() if json.loads(row)["step"] in (left or [])]
    file.unlink()
    if left is not None:
        file.write_text("".join(f"{row}\n" for row in kept))
    again = onehop.train(recipe(tmp_path, steps=6, **options), resume=True)
    assert [note for note in again.trainer.notes if "metrics" in note] == told
    assert [row["step"] for row in lines(tmp_path)] == [*(left or []), 5, 6]
    assert Trainer(recipe(tmp_path, steps=6, **options), resume=True).notes == []


def test_kill_9_in_the_middle_of_a_save_leaves_a_run_that_can_be_resumed(tmp_path):
    """The process dies while the second state is being written, and again between the renames of the model's files."""
    onehop.train(recipe(tmp_path, steps=3))
    program = """
        import os, signal, sys
        from pathlib import Path
        from tests.training.small_runs import recipe
        import onehop
        from onehop.{module} import {name} as real
        import onehop.{module} as module
        def dying(*args, **more):
            {before}
            os.kill(os.getpid(), signal.SIGKILL)
        module.{name} = dying
        onehop.train(recipe(Path(sys.argv[1]), steps=6), resume=True)
    """
    torn_state = {"module": "training.checkpoints", "name": "write_tensors", "before": "args[0].write_bytes(b'half')"}
    torn_files = {"module": "weights.place", "name": "atomic_folder", "before": "pass"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for point in (torn_state, torn_files):
        code = textwrap.dedent(program).format(**point)
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        onehop.load(tmp_path / "out")
        Trainer(recipe(tmp_path, steps=6), resume=True)


@pytest.mark.parametrize("where", ["onehop.training.checkpoints.write_tensors", "onehop.training.samples.append"])
def test_a_full_disk_is_one_line_and_leaves_the_last_save(tmp_path, monkeypatch, where):
    onehop.train(recipe(tmp_path, steps=3))

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    if where.endswith("append"):  # a file that is always full
        (tmp_path / "out" / "samples.txt").unlink()
        (tmp_path / "out" / "samples.txt").symlink_to("/dev/full")
        monkeypatch.setattr(session, "drop_samples", lambda *args, **more: None)
    else:
        monkeypatch.setattr(where, full)
    with pytest.raises(OnehopError, match=r"cannot write .*: the disk is full"):
        onehop.train(recipe(tmp_path, steps=6), resume=True)
    monkeypatch.undo()
    assert not list((tmp_path / "out" / FOLDER).glob(".*"))
    assert Trainer(recipe(tmp_path, steps=6), resume=True).progress.step == 3


def test_samples_of_later_steps_are_dropped(tmp_path):
    path = tmp_path / "samples.txt"
    for step in (3, 6, 9):
        write_sample(path, f"told\nat {step}", step=step, val_loss=1.0)
    drop_samples(path, after=6)
    assert path.read_text() == "".join(f"--- step {s}, validation loss 1.000\ntold\nat {s}\n" for s in (3, 6))


def test_bytes_in_the_samples_that_are_no_text_stay_and_stop_no_run(tmp_path):
    run = onehop.train(recipe(tmp_path))
    samples = run.out / "samples.txt"
    samples.write_bytes(b"\xff mine\n" + samples.read_bytes())
    onehop.train(recipe(tmp_path, steps=8), resume=True)
    assert samples.read_bytes().startswith(b"\xff mine\n--- step 3,")
    assert b"--- step 8," in samples.read_bytes()


def test_a_log_that_is_no_terminal_hears_of_long_phases(tmp_path, monkeypatch):
    monkeypatch.setattr("onehop.training.report.SILENCE", 0.0)
    console = told()
    onehop.train(recipe(tmp_path, steps=2), console=console)
    assert "documents" in console.file.getvalue()
    assert "step 1 of 2" in console.file.getvalue()


def test_the_best_possible_loss_counts_every_target_of_the_validation_text(tmp_path):
    """Entropy per story times stories, shared out over all their targets; the end of a story is one of them."""
    small = recipe(tmp_path, data={"files": [], "separator": None, "corpus": "fables", "n_documents": 30}, context=32)
    trainer = Trainer(small)
    corpus = session.CORPORA.get("fables")
    held = trainer.data.validation
    assert best_possible(trainer, corpus) == pytest.approx(corpus.entropy() * held.n_documents / held.n_targets)
    assert validation_cuts(trainer) == held.n_documents  # each is longer than 32 tokens
    assert best_possible(trainer, None) is None


def test_a_prefix_model_is_told_to_train_as_a_causal_one(tmp_path):
    console = told()
    onehop.train(recipe(tmp_path, steps=1, model={"attention": {"n_heads": 2, "sees": "prefix"}}), console=console)
    assert "plain text has no prefixes" in console.file.getvalue()
