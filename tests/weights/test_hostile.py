"""A folder that means harm, or was damaged, is refused in one line, soon and without much memory."""

import json
import os
import random
import sys
import time
from contextlib import contextmanager

import pytest
from safetensors.torch import load_file, save_file

from onehop.base.errors import CheckpointError, OnehopError, TextError
from onehop.formats import table
from onehop.text.tokenizer import Tokenizer
from onehop.weights import open_model
from tests.golden import write_golden
from tests.text.small_tokenizers import bytes_only

# Lines of onehop that are run to read, or refuse, a folder of the golden model: some tens of thousands, as measured. A
# loop over what a file claims would take billions.
MOST_LINES = 2_000_000


class TooMuchWork(BaseException):
    """More lines were run than any honest folder asks for; no `except Exception` may hide it."""


@contextmanager
def bounded_work():
    """Count the lines of onehop that are run, and stop at the bound."""
    lines, before = 0, sys.gettrace()

    def count(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        if lines > MOST_LINES:
            raise TooMuchWork(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return count

    sys.settrace(lambda frame, event, arg: count if f"{os.sep}onehop{os.sep}" in frame.f_code.co_filename else None)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


def test_the_bound_on_work_is_a_bound(tmp_path, monkeypatch):
    """A reader that loops over what a file claims is stopped; an honest folder is far from the bound."""
    with bounded_work() as lines:
        open_model(write_golden(tmp_path))
    assert 1000 < lines() < MOST_LINES / 10
    write_golden(tmp_path)
    change(tmp_path / "config.json", num_hidden_layers=10**9)
    monkeypatch.setattr(table, "refuse_too_many_layers", lambda *_, **__: None)
    with pytest.raises(TooMuchWork), bounded_work():
        open_model(tmp_path)


def refused(folder, error=OnehopError, match="."):
    """The one line that refuses a folder."""
    with pytest.raises(error, match=match) as caught, bounded_work():
        open_model(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900
    return str(caught.value)


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size"])
@pytest.mark.parametrize("value", [10**9, 10**18, 10**40])
def test_a_config_that_claims_the_impossible_is_refused_at_once(tmp_path, key, value):
    write_golden(tmp_path)
    change(tmp_path / "config.json", **{key: value})
    refused(tmp_path)


def test_a_header_of_a_shape_that_overflows_with_a_config_that_agrees(tmp_path):
    write_golden(tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header["model.norm.weight"]["shape"] = [2**62, 4, 2**10]
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + int.from_bytes(data[:8], "little") :])
    refused(tmp_path, CheckpointError, "truncated or damaged")


def test_weights_with_nan_are_refused_by_name(tmp_path):
    write_golden(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    refused(tmp_path, CheckpointError, r"norm\.weight holds NaN: the weights are damaged")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    folder = write_golden(tmp_path / "model")
    bytes_only().save(folder)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert name in refused(folder, CheckpointError, "is a link that leads out of its folder")
    if name != "config.json":
        with pytest.raises(TextError, match="is a link that leads out of its folder"):
            Tokenizer.load(folder)


def test_a_link_that_runs_in_circles_is_refused(tmp_path):
    folder = write_golden(tmp_path / "model")
    (folder / "round").symlink_to("round")
    assert "round" in refused(folder, CheckpointError, "is a link that leads out of its folder")


def test_links_inside_a_folder_and_to_a_folder_are_followed(tmp_path):
    folder = write_golden(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(folder)
    assert open_model(tmp_path / "link").config == open_model(folder).config


BOMBS = {
    "deep": lambda file: file.write_text("[" * 1_000_000),
    "deep objects": lambda file: file.write_text('{"model":' * 300_000),
    "huge": lambda file: (file.touch(), os.truncate(file, 10**12)),
    "a number without end": lambda file: file.write_text('{"added_tokens": ' + "9" * 100_000 + "}"),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"])
def test_a_json_bomb_is_refused_soon(tmp_path, name, kind):
    folder = write_golden(tmp_path)
    bytes_only().save(folder)
    BOMBS[kind](folder / name)
    with pytest.raises(OnehopError) as caught, bounded_work():
        open_model(folder)
        Tokenizer.load(folder)
    assert "\n" not in str(caught.value)


def mutate(folder, rng):
    """One change to one of the files: bytes of a header, a value of a config, a cut."""
    file = folder / rng.choice(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
    data = bytearray(file.read_bytes())
    kind = rng.randrange(4)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
    elif kind == 2 and file.suffix == ".json":
        table = json.loads(data)
        junk = [None, -1, 0, 2**63, 1e308, "x", [], {}, [[]], {"type": "yarn"}, True, "\ud800", float("nan")]
        table[rng.choice(list(table))] = rng.choice(junk)
        data = bytearray(json.dumps(table).encode())
    else:
        at = rng.randrange(min(len(data), 3000))
        data[at:at] = rng.choice([b"9" * 30, b"-", b'"', b"[", b"\xff\xff", b"null", b"\0"])
    file.write_bytes(data)


def fuzz(tmp_path, rounds, *, seed):
    rng = random.Random(seed)
    folder = write_golden(tmp_path)
    bytes_only().save(folder)
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    for _ in rounds:
        for name, data in whole.items():
            (folder / name).write_bytes(data)
        mutate(folder, rng)
        for read in (open_model, Tokenizer.load):
            assert "\n" not in refusal(read, folder)


def refusal(read, folder):
    """What a reader says against a folder; nothing where it reads it."""
    try:
        with bounded_work():
            read(folder)
    except OnehopError as error:
        return str(error)
    return ""


def test_whatever_is_changed_in_a_folder_it_is_read_or_refused_in_one_line(tmp_path):
    fuzz(tmp_path, range(150), seed=0)


@pytest.mark.slow
def test_whatever_is_changed_in_a_folder_for_a_minute(tmp_path):
    until = time.monotonic() + 60
    fuzz(tmp_path, iter(lambda: time.monotonic() < until, False), seed=time.time_ns())
