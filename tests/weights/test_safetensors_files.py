"""Safetensors files are read and written bit for bit; a damaged one is refused with its name and what is wrong."""

import json
import os
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from onehop.base.errors import CheckpointError
from onehop.formats.safetensors_header import read_header
from onehop.weights.safetensors_files import open_tensors, read_tensors, write_model, write_tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def some(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def equal(a, b):
    """Bit for bit: same names, dtypes, shapes and bytes."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name
    return True


def raw_file(file, table, data=b"", *, length=None):
    """A file with any header, right or wrong."""
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    file.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return file


def row(dtype="F32", shape=(2,), at=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at)}


def test_tensors_of_every_dtype_come_back_bit_for_bit(tmp_path):
    tensors = {str(dtype): torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "turned": torch.randn(3, 5).T}
    write_tensors(tmp_path / "state", tensors, metadata={"step": "7"})
    assert equal(read_tensors(tmp_path / "state"), tensors)
    assert equal(load_file(tmp_path / "state"), tensors)


def test_what_was_read_does_not_change_with_the_file(tmp_path):
    write_tensors(tmp_path / "state", some(a=(1000,)))
    found = read_tensors(tmp_path / "state")
    before = found["a"].clone()
    with open(tmp_path / "state", "r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 2000)
    assert torch.equal(found["a"], before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_reading_into_memory_of_ones_own_equals_reading_from_the_mapped_file(tmp_path, dtype, monkeypatch):
    """Also through a buffer that is smaller than the tensor, and from the middle of a file."""
    monkeypatch.setattr("onehop.weights.safetensors_files.BUFFER", 7)
    write_tensors(tmp_path / "model.safetensors", {n: t.to(dtype) for n, t in some(a=(9, 5), b=(), c=(0, 3)).items()})
    with open_tensors(tmp_path) as found:
        for to in (torch.float64, torch.float32, torch.bfloat16):
            for name, entry in found.entries.items():
                out = torch.full(entry.shape, 7.0, dtype=to)
                found.read_into(name, out)
                assert torch.equal(out, found.read(name).to(to))


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path):
    write_tensors(tmp_path / "model.safetensors", some(a=(100,)))
    with open_tensors(tmp_path) as found:
        os.truncate(tmp_path / "model.safetensors", 200)
        with pytest.raises(CheckpointError, match="it ends inside its data"):
            found.read_into("a", torch.empty(100))


def test_one_file_or_shards_hold_the_same_tensors(tmp_path):
    tensors = some(a=(10, 10), b=(5,), c=(30, 10), d=(1,))
    for name, limit in (("one", 10**6), ("several", 500)):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, tensors.items(), max_bytes=limit)
        with open_tensors(tmp_path / name) as found:
            assert equal({n: found.read(n).clone() for n in found.entries}, tensors)
            assert found.nbytes == sum(t.nbytes for t in tensors.values())
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == ["model.safetensors"]
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    # a and b fit together (420 bytes); c is larger than the limit and stands alone; d begins the last one.
    assert index["weight_map"] == {
        "a": "model-00001-of-00003.safetensors", "b": "model-00001-of-00003.safetensors",
        "c": "model-00002-of-00003.safetensors", "d": "model-00003-of-00003.safetensors",
    }  # fmt: skip
    assert index["metadata"]["total_size"] == 4 * (100 + 5 + 300 + 1)


def test_the_dtype_of_a_checkpoint_is_the_one_of_most_of_its_bytes(tmp_path):
    tensors = {
        "w": torch.ones(100, dtype=torch.bfloat16),
        "norm": torch.ones(10),
        "ids": torch.ones(500, dtype=torch.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with open_tensors(tmp_path) as found:
        assert found.dtype() == torch.bfloat16


HEADERS = {
    "nothing at all": (b"", None, "it ends inside its header, after 8 bytes"),
    "no JSON": (b"{]", None, "its header is not JSON"),
    "nested without end": (b"[" * 100_000, None, "its header is not JSON"),
    "a list": (b"[]", None, "its header is no table"),
    "a length that lies": (b"{}", 10**15, "it ends inside its header, after 10 bytes"),
    "half a row": ({"a": {"dtype": "F32"}}, None, "its header describes a incompletely"),
    "a row that is a number": ({"a": 3}, None, "its header describes a incompletely"),
    "too few offsets": ({"a": {**row(), "data_offsets": [0]}}, None, "its header describes a incompletely"),
    "an unknown dtype": ({"a": row(dtype="F33")}, None, "a has the dtype 'F33', which is not known"),
    "a negative shape": ({"a": row(shape=(-2,))}, None, "gives a an impossible shape or place"),
    "a shape of text": ({"a": row(shape=("2",))}, None, "gives a an impossible shape or place"),
    "a boolean shape": ({"a": row(shape=(True, 2))}, None, "gives a an impossible shape or place"),
    "offsets backwards": ({"a": row(at=(8, 0))}, None, "gives a an impossible shape or place"),
    "a shape that overflows": ({"a": row(shape=(2**40, 2**40))}, None, "a is F32 .* bytes, but 8 are set aside for it"),
    "a shape that does not fit": ({"a": row(shape=(3,))}, None, r"a is F32 \[3\], 12 bytes, but 8 are set aside"),
    "an overlap": ({"a": row(), "b": row(at=(4, 12))}, None, "b begins at byte 4 of the data, where 8 is expected"),
    "a gap": ({"a": row(), "b": row(at=(12, 20))}, None, "b begins at byte 12 of the data, where 8 is expected"),
    "too little data": ({"a": row(shape=(20,), at=(0, 80))}, None, "a should end after 80 bytes of data, but there"),
    "a name that is no name": ({"a\nb": row()}, None, "a tensor whose name is no name"),
    "a dtype that is a list": ({"a": {**row(), "dtype": ["F32"]}}, None, r"a has the dtype \['F32'\], which is not"),
    "a thousand dims": ({"a": row(shape=[1] * 1000)}, None, "an impossible shape or place"),
    "too much data": ({"a": row()}, None, "its tensors end after 8 bytes of data, but there are 24"),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_lies_is_refused_in_one_line_that_names_the_file(tmp_path, what):
    table, length, text = HEADERS[what]
    file = raw_file(
        tmp_path / "model.safetensors", table, b"" if what == "nothing at all" else bytes(24), length=length
    )
    if length is not None:
        file.write_bytes(file.read_bytes()[:10])
    if what == "nothing at all":
        file.write_bytes(struct.pack("<Q", 100))
    with pytest.raises(CheckpointError, match=text) as caught:
        read_header(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_file_with_changed_bytes_is_read_or_refused_in_one_line(changes):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        write_tensors(file, some(a=(3, 4), b=(5,), c=()))
        data = bytearray(file.read_bytes())
        for at, byte in changes:
            data[at % len(data)] = byte
        file.write_bytes(data)
        refused = ""
        try:
            assert all(isinstance(tensor, torch.Tensor) for tensor in read_tensors(file).values())
        except CheckpointError as error:
            refused = str(error)
        assert "\n" not in refused
        assert len(refused) < 700


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 20, 100, 150, -1])
def test_a_file_that_is_cut_anywhere_is_refused(tmp_path, cut):
    write_tensors(tmp_path / "model.safetensors", some(a=(8, 8), b=(3,)))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:cut])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged: .* Get it again"):
        open_tensors(tmp_path)


def test_a_header_beyond_the_formats_limit_is_refused(tmp_path):
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)
    with pytest.raises(CheckpointError, match="its header claims 200 MB"):
        open_tensors(tmp_path)


def test_metadata_in_a_header_is_no_tensor(tmp_path):
    raw_file(tmp_path / "f", {"__metadata__": {"format": "pt"}, "a": row()}, bytes(8))
    assert list(read_header(tmp_path / "f")) == ["a"]


@pytest.fixture
def shards(tmp_path):
    write_model(tmp_path, some(a=(10, 10), b=(10, 10), c=(10,)).items(), max_bytes=400)
    index = tmp_path / "model.safetensors.index.json"

    def change(**places):
        table = json.loads(index.read_text())
        table["weight_map"] |= places
        index.write_text(json.dumps(table))
        return tmp_path

    return change


def test_a_missing_shard_is_named(shards):
    folder = shards()
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing: .*index\.json names it"):
        open_tensors(folder)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "..", "sub/x.safetensors", "a\\b", ""])
def test_an_index_cannot_lead_out_of_the_folder(shards, place):
    with pytest.raises(CheckpointError, match=r"lies outside the folder\. Do not trust this checkpoint"):
        open_tensors(shards(a=place))


def test_an_index_that_names_the_wrong_shard_is_refused(shards):
    with pytest.raises(
        CheckpointError, match=r"model-00003-of-00003\.safetensors should hold a, as .* says, but does not"
    ):
        open_tensors(shards(a="model-00003-of-00003.safetensors"))


def test_a_tensor_that_lies_in_two_shards_is_refused(shards):
    folder = shards()
    write_tensors(folder / "model-00003-of-00003.safetensors", some(a=(2,), c=(10,)))
    with pytest.raises(CheckpointError, match=r"a lies in model-00001-of-00003\.safetensors and in model-00003-of"):
        open_tensors(folder)


def test_an_index_without_a_map_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')
    with pytest.raises(CheckpointError, match=r"index\.json has no weight_map"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_a_pickle_is_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(CheckpointError, match=rf"holds its weights as a pickle \({name}\), which can run foreign code"):
        open_tensors(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_folder_without_weights_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors and no .*: its weights are missing"):
        open_tensors(tmp_path)
    with pytest.raises(CheckpointError, match=r"state is missing"):
        read_tensors(tmp_path / "state")


def test_whoever_may_read_a_new_file_may_read_the_weights(tmp_path):
    (tmp_path / "plain").touch()
    write_tensors(tmp_path / "w.safetensors", {"w": torch.ones(2)})
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
