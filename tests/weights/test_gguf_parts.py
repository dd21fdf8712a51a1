"""A model in several GGUF files is one model, and so is one whose experts have a tensor each."""

import re

import gguf
import pytest
import torch

import onehop
from onehop.base.errors import CheckpointError
from onehop.cli.main import main
from onehop.lm.convert import convert
from onehop.weights import load_gguf, save_gguf
from tests.gguf_models import CASES, llama
from tests.weights.compare import same_weights

PART = "a-{:05}-of-{:05}.gguf"


def rewritten(file, target, *, tensors=lambda name, data: [(name, data)], **options):
    """The file's metadata and tensors by the package's own writer; `tensors` may make several of one."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents(), **options)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        for name, data in tensors(tensor.name, tensor.data):
            writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def parts(tmp_path):
    """A model, and the files that the package's writer cuts it into."""
    model = onehop.build(llama(), seed=1).eval()
    save_gguf(model, tmp_path / "whole.gguf")
    rewritten(tmp_path / "whole.gguf", tmp_path / "a.gguf", split_max_tensors=12)
    (tmp_path / "whole.gguf").unlink()
    return model, sorted(tmp_path.glob("*.gguf"))


def test_all_parts_are_read_as_one_whichever_is_named(parts):
    model, files = parts
    assert [file.name for file in files] == [PART.format(i, len(files)) for i in range(1, len(files) + 1)]
    assert len(files) > 2
    for named in (*files, files[0].parent):
        same_weights(onehop.load(named).model, model)


def test_parts_are_converted_into_one_folder_and_the_report_names_what_they_hold(parts, tmp_path):
    model, files = parts
    done = convert(files[0], tmp_path / "b")
    same_weights(onehop.load(tmp_path / "b").model, model)
    held = {tensor.name for file in files for tensor in gguf.GGUFReader(file).tensors}
    assert {name for moved in done.tensors for name in moved.source} == held


def refusal(file):
    with pytest.raises(CheckpointError) as caught:
        load_gguf(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_set_that_is_not_complete_is_refused_by_the_names_of_what_is_missing(parts, capsys):
    _, files = parts
    files[1].unlink()
    assert f"its folder lacks {files[1].name}. Get" in refusal(files[0])
    files[0].unlink()
    assert f"its folder lacks {files[0].name}, {files[1].name}. Get" in refusal(files[2])
    assert main(["generate", str(files[2]), "a"]) == 2
    assert files[0].name in capsys.readouterr().err


def test_a_part_under_another_name_is_refused(parts):
    _, files = parts
    first, second = (file.read_bytes() for file in files[:2])
    files[1].write_bytes(first)
    assert f"{files[1].name} should be part 1 of {len(files)} (from 0), but says split.no=0" in refusal(files[0])
    files[1].write_bytes(second)
    alone = files[0].rename(files[0].with_name("mine.gguf"))
    assert f"is one of {len(files)} parts of a model, but its name does not say which" in refusal(alone)


def change_number(file, key, value):
    """Another 16- or 32-bit number for a key, in place."""
    field = gguf.GGUFReader(file).fields[key]
    (at,), width = field.data, field.parts[-1].nbytes
    offset = field.offset + sum(part.nbytes for part in field.parts[:at])
    data = bytearray(file.read_bytes())
    data[offset : offset + width] = value.to_bytes(width, "little")
    file.write_bytes(data)


def test_parts_that_hold_other_tensors_than_announced_are_refused(parts):
    _, files = parts
    n = sum(len(gguf.GGUFReader(file).tensors) for file in files)
    change_number(files[0], "split.tensors.count", n + 1)
    assert re.search(rf"split.tensors.count={n + 1}, but its {len(files)} parts hold {n} tensors", refusal(files[0]))
    first, second = ([tensor.name for tensor in gguf.GGUFReader(file).tensors] for file in files[:2])
    name, other = next((a, b) for a in first for b in second if len(a) == len(b))
    files[1].write_bytes(files[1].read_bytes().replace(_named(other), _named(name)))
    assert f"{files[1].name} holds {name} too, which another part has" in refusal(files[0])


def _named(name):
    return len(name).to_bytes(8, "little") + name.encode()


def test_experts_with_a_tensor_each_are_those_in_one(tmp_path):
    """Mixtral's files before April 2024."""
    _, config = CASES["llama, experts"]
    model = onehop.build(config, seed=2).eval()
    save_gguf(model, tmp_path / "new.gguf")

    def each(name, data):
        if "_exps" not in name:
            return [(name, data)]
        return [(name.replace("_exps", f".{e}"), part) for e, part in enumerate(data)]

    rewritten(tmp_path / "new.gguf", tmp_path / "old.gguf", tensors=each)
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "old.gguf").tensors}
    assert "blk.2.ffn_down.4.weight" in names
    assert not any("_exps" in name for name in names)
    same_weights(load_gguf(tmp_path / "old.gguf"), model)
    done = convert(tmp_path / "old.gguf", tmp_path / "b.gguf")
    assert {name for moved in done.tensors for name in moved.source} == names
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), load_gguf(tmp_path / "b.gguf").parameters()))
    data = (tmp_path / "old.gguf").read_bytes()
    (tmp_path / "old.gguf").write_bytes(data.replace(b"blk.1.ffn_up.3.weight", b"blk.1.ffn_up.7.weight"))
    assert "missing blk.1.ffn_up.3.weight; unexpected blk.1.ffn_up.7.weight" in refusal(tmp_path / "old.gguf")
