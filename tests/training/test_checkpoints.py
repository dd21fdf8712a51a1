"""Checkpoints are whole or absent, the newest and the best stay, and writing them waits for nobody."""

import errno
import json
import os
import shutil
import signal
import subprocess
import threading

import pytest
import torch

import onehop
from onehop.base.errors import OnehopError
from onehop.data import sides
from onehop.training import saving, session
from onehop.training.checkpoints import BEST, FOLDER, SUMS, Checkpoints, Writer, damage
from onehop.training.trainer import Trainer
from onehop.weights.safetensors_files import read_tensors
from tests.training.small_runs import recipe


def names(folder):
    return sorted(path.name for path in (folder / "out" / FOLDER).iterdir())


def rows(folder):
    found = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("tokens_per_s", "memory")} for row in found]


def saved(folder, losses, *, keep):
    """The names left by saves at steps 1, 2, …, of which some were evaluated (a loss), others not (None)."""
    run = Trainer(recipe(folder, keep=keep, steps=len(losses)), fresh=True)
    for _, loss in zip(run.steps(), losses, strict=True):
        if loss is not None:
            run.progress = run.judged(loss)
        run.save()
    return [name for name in names(folder) if name != BEST]


@pytest.mark.parametrize(
    ("losses", "keep", "left", "best"),
    [
        ([3.0, 1.0, 2.0, None, 2.5], 2, [2, 4, 5], 2),
        ([3.0, 1.0, 2.0, None, 2.5], 1, [2, 5], 2),
        ([3.0, 2.0, 1.0], 2, [2, 3], 3),
        ([None, None, None], 2, [2, 3], None),
    ],
)
def test_the_newest_and_the_best_stay(tmp_path, losses, keep, left, best):
    assert saved(tmp_path, losses, keep=keep) == [f"step-{step:08d}" for step in left]
    link = tmp_path / "out" / FOLDER / BEST
    assert link.exists() == (best is not None)
    if best is not None:
        assert link.resolve().name == f"step-{best:08d}"
        onehop.load(link)


def test_an_evaluation_that_is_the_best_so_far_is_saved_though_no_save_was_due(tmp_path):
    run = onehop.train(recipe(tmp_path, steps=7, eval_every=2, save_every=100, keep=1))
    best = run.trainer.progress.best_step
    assert names(tmp_path) == sorted({BEST, f"step-{best:08d}", "step-00000007"})


def test_a_checkpoint_is_a_model_that_everything_reads_and_sha256sum_agrees(tmp_path):
    run = onehop.train(recipe(tmp_path))
    path = run.out / FOLDER / "step-00000006"
    tokens = torch.arange(8).unsqueeze(0)
    assert torch.equal(onehop.load(path).model(tokens), run.model.eval()(tokens))
    assert os.path.samefile(path / "model.safetensors", run.out / "model.safetensors")  # held once
    checked = subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert {line.split(": ")[0] for line in checked.stdout.splitlines()} | {SUMS} == set(os.listdir(path))


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "training.json", SUMS])
@pytest.mark.parametrize("how", ["one bit", "cut", "missing"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path, file, how):
    run = Trainer(recipe(tmp_path))
    for result in run.steps():
        if result.step in (2, 4):
            run.save()
    place = tmp_path / "out" / FOLDER / "step-00000004" / file
    content = bytearray(place.read_bytes())
    place.unlink()
    if how == "one bit":
        content[len(content) // 2] ^= 1
        place.write_bytes(content)
    elif how == "cut":
        place.write_bytes(content[: len(content) // 2])
    assert damage(place.parent)
    again = Trainer(recipe(tmp_path), resume=True)
    (note,) = again.notes
    assert "step-00000004 is damaged (" in note
    assert note.endswith("; going on from step 2")
    assert again.progress.step == 2
    assert [name.rpartition("-")[0] for name in names(tmp_path) if "damaged" in name] == ["damaged-step-00000004"]
    shown = read_tensors(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(tensor, shown[name]) for name, tensor in again.model.state_dict().items())
    for _ in again.steps():
        pass
    again.save()
    assert "step-00000006" in names(tmp_path)


def test_saving_one_step_twice_leaves_the_later_weights(tmp_path):
    run = Trainer(recipe(tmp_path))
    run.save()
    with torch.no_grad():
        run.model.final_norm.weight.fill_(2.0)
    run.save()
    assert names(tmp_path) == ["step-00000000"]
    assert (Trainer(recipe(tmp_path), resume=True).model.final_norm.weight == 2.0).all()


def test_training_goes_on_while_a_checkpoint_is_written_and_the_checkpoint_is_of_its_moment(tmp_path, monkeypatch):
    """The write waits for step 5; were it waited for, nobody would get there."""
    real, reached, at_3 = saving.write_native, threading.Event(), {}

    def patient(*args, **more):
        assert reached.wait(60)
        return real(*args, **more)

    def after(self, result):
        after_step(self, result)
        if result.step == 3:
            at_3.update({name: tensor.clone() for name, tensor in self.trainer.model.state_dict().items()})
        if result.step == 5:
            reached.set()

    after_step = session.Session._after_step
    monkeypatch.setattr(saving, "write_native", patient)
    monkeypatch.setattr(session.Session, "_after_step", after)
    onehop.train(recipe(tmp_path))
    found = read_tensors(tmp_path / "out" / FOLDER / "step-00000003" / "model.safetensors")
    assert found.keys() == at_3.keys()
    assert all(torch.equal(found[name], at_3[name]) for name in found)


def test_what_goes_wrong_behind_the_training_thread_ends_the_run_with_its_words():
    def fail():
        raise OnehopError("the disk is full")

    writer = Writer()
    writer.start(fail)
    with pytest.raises(OnehopError, match="the disk is full"):
        writer.wait()
    writer.wait()  # once
    writer.start(fail)
    with pytest.raises(OnehopError, match="the disk is full"):
        writer.start(lambda: None)
    writer.start(fail)
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "is read-only")])
@pytest.mark.parametrize("operation", [3, 40, 77, 95])
def test_a_disk_that_fails_at_any_moment_loses_nothing_that_was_saved(tmp_path, monkeypatch, number, told, operation):
    """From some operation on files on nothing can be written; afterwards the run goes on as if nothing had been."""
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    for folder in (whole, torn):
        folder.mkdir()
    small = {"steps": 6, "eval_every": 2, "sample_tokens": 2, "log_every": 1}
    monkeypatch.setattr(session, "draw_losses", lambda *args, **more: None)
    onehop.train(recipe(whole, **small))
    onehop.train(recipe(torn, **small | {"steps": 2}))

    left, before = [operation], newest(torn)
    with monkeypatch.context() as patch:
        for name in ("replace", "fsync", "link", "mkdir", "open"):
            patch.setattr(os, name, failing(getattr(os, name), left, number))
        with pytest.raises(OnehopError, match=rf"^cannot write .*{told}"):
            onehop.train(recipe(torn, **small), resume=True)
    assert damage(newest(torn)) is None
    assert newest(torn).name >= before.name
    onehop.train(recipe(torn, **small), resume=True)
    assert rows(torn) == rows(whole)  # the rate rises over the first two steps, whatever train.steps says
    assert newest(torn).joinpath("model.safetensors").read_bytes() == (
        newest(whole).joinpath("model.safetensors").read_bytes()
    )


def newest(folder):
    return Checkpoints(folder / "out", keep=2).newest_first()[0]


def failing(real, left, number):
    """An operation on files that fails for good once `left` has run out."""

    def call(*args, **more):
        left[0] -= 1
        if left[0] < 0 and not (real is os_open and not args[1] & os.O_CREAT):
            raise OSError(number, os.strerror(number), *(str(a) for a in args[:1] if not isinstance(a, int)))
        return real(*args, **more)

    return call


os_open = os.open


def test_sigterm_saves_as_ctrl_c_does(tmp_path, monkeypatch):
    """What a cluster's scheduler sends; the run tells which signal it was."""
    real, before = session.Session._after_step, signal.getsignal(signal.SIGTERM)

    def terminated(self, result):
        if result.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, result)

    monkeypatch.setattr(session.Session, "_after_step", terminated)
    run = onehop.train(recipe(tmp_path))
    assert signal.getsignal(signal.SIGTERM) is before
    assert (run.interrupted, run.stopped_by, run.step) == (True, signal.SIGTERM, 4)
    assert newest(tmp_path).name == "step-00000004"


def test_sigterm_while_the_text_is_read_leaves_nothing_half_written(tmp_path, monkeypatch):
    real = sides.write_shards

    def terminated(*args, **options):
        real(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sides, "write_shards", terminated)
    with pytest.raises(SystemExit) as ended:
        onehop.train(recipe(tmp_path))
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not (tmp_path / "out").exists()


def test_a_run_that_ended_before_its_first_checkpoint_is_told_to_start_over(tmp_path):
    Trainer(recipe(tmp_path)).metrics.write({"step": 1})
    with pytest.raises(OnehopError, match=r"It ended before its first checkpoint: start over with --fresh\.$"):
        Trainer(recipe(tmp_path), resume=True)


def test_a_fresh_run_leaves_what_is_not_a_checkpoint(tmp_path):
    Trainer(recipe(tmp_path)).save()
    mine = tmp_path / "out" / FOLDER / "notes.txt"
    mine.write_text("mine")
    Trainer(recipe(tmp_path), fresh=True)
    assert names(tmp_path) == ["notes.txt"]


def test_a_run_that_was_copied_with_its_links_followed_goes_on_and_has_a_link_again(tmp_path):
    onehop.train(recipe(tmp_path))
    copied = tmp_path / "copy"
    shutil.copytree(tmp_path / "out", copied)  # follows links, as scp -r does
    assert not (copied / FOLDER / BEST).is_symlink()
    onehop.train(recipe(tmp_path, steps=8).model_copy(update={"out": str(copied)}), resume=True)
    assert (copied / FOLDER / BEST).is_symlink()
    assert not list((copied / FOLDER).glob(".*"))
