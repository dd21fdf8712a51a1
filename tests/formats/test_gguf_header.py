"""A GGUF header is read as the package `gguf` reads it, and a damaged one is refused in one line."""

import struct
from decimal import Decimal

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onehop.base.errors import CheckpointError, OnehopError
from onehop.formats.gguf.header import TYPES, float32, read_header, shortest

LONGEST = 400  # characters of a refusal


def written(file):
    """A file with every kind of value, by the package's own writer."""
    writer = gguf.GGUFWriter(file, "any")
    writer.add_uint32("any.count", 7)
    writer.add_int32("any.below", -7)
    writer.add_float32("any.eps", 1e-5)
    writer.add_float64("any.wide", 0.1)
    writer.add_bool("any.yes", True)
    writer.add_string("any.text", "größe 🙂")
    writer.add_array("any.texts", ["a", "", "▁b"])
    writer.add_array("any.numbers", [1.5, -2.0])
    writer.add_array("any.flags", [True, False])
    writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("vector", np.ones(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_header_says_what_the_package_reads(tmp_path):
    """The package's own reader is the plain twin of ours, which need not copy a million texts twice."""
    file = written(tmp_path / "a.gguf")
    header, reader = read_header(file), gguf.GGUFReader(file)
    told = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata["any.eps"] == 1e-5  # and not 9.999999747378752e-06
    assert {**header.metadata, "any.eps": told["any.eps"]} == told
    places = {tensor.name: (tuple(tensor.shape[::-1].tolist()), int(tensor.data_offset)) for tensor in reader.tensors}
    assert {name: (place.shape, place.begin) for name, place in header.tensors.items()} == places


def test_types_have_the_blocks_of_the_package():
    sizes = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {number: sizes[number] for number in TYPES} == TYPES


def digits(value):
    """How many a decimal number has, without zeros at its end: 1 for 1000.0."""
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(999999995904.0)  # 1e12
def test_the_shortest_decimal_means_the_same_float32(value):
    assert float32(shortest(value)) == value
    assert digits(shortest(value)) <= digits(value)


def damaged(file, change):
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)
    return file


def put(at, form, value):
    return lambda data: struct.pack_into(form, data, at, value)


DAMAGE = {
    "another kind of file": (put(0, "<I", 0), "is no GGUF file"),
    "a version to come": (put(4, "<I", 9), "version 9"),
    "big-endian": (put(4, ">I", 3), "big-endian"),
    "tensors without end": (put(8, "<Q", 2**60), "truncated or damaged"),
    "keys without end": (put(16, "<Q", 2**60), "truncated or damaged"),
    "a key as long as the universe": (put(24, "<Q", 2**63), "truncated or damaged"),
    "cut inside the header": (lambda data: data.__delitem__(slice(60, None)), "truncated or damaged"),
    "cut inside the data": (lambda data: data.__delitem__(slice(-40, None)), "should end at byte"),
    "nearly nothing": (lambda data: data.__delitem__(slice(10, None)), "it has only 10 bytes"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, name):
    change, text = DAMAGE[name]
    file = damaged(written(tmp_path / "a.gguf"), change)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert text in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tensor_of_an_unknown_type_is_refused_by_name(tmp_path):
    file = written(tmp_path / "a.gguf")
    at = file.read_bytes().index(b"matrix") + len("matrix") + 4 + 2 * 8
    with pytest.raises(CheckpointError, match="matrix has the type number 77, which is not known"):
        read_header(damaged(file, put(at, "<I", 77)))


def test_tensors_that_lie_over_each_other_are_refused(tmp_path):
    file = written(tmp_path / "a.gguf")
    at = file.read_bytes().index(b"vector") + len("vector") + 4 + 8 + 4
    with pytest.raises(CheckpointError, match=r"begins at byte \d+, inside"):
        read_header(damaged(file, put(at, "<Q", 0)))


def test_a_tensor_that_is_there_twice_is_refused_by_name(tmp_path):
    file = written(tmp_path / "a.gguf")
    at = file.read_bytes().index(b"vector")
    with pytest.raises(CheckpointError, match="the tensor matrix is there twice"):
        read_header(damaged(file, put(at, "6s", b"matrix")))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), min_size=1, max_size=6))
def test_whatever_bytes_stand_there_the_answer_is_a_header_or_one_line(tmp_path_factory, changes):
    file = tmp_path_factory.mktemp("fuzz") / "a.gguf"
    written(file)

    def change(data):
        for at, byte in changes:
            data[at % len(data)] = byte

    refused = ""
    try:
        read_header(damaged(file, change))
    except OnehopError as error:
        refused = str(error)
    assert "\n" not in refused
    assert len(refused) < LONGEST + len(str(file))
