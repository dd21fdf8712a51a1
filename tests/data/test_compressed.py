import gzip
import itertools
import json
import sys
import tracemalloc

import pytest

from onehop.base.errors import DataError, MissingExtra
from onehop.data import lines
from onehop.data.compressed import reading
from onehop.data.sources import open_source


@pytest.fixture
def zstandard():
    return pytest.importorskip("zstandard")


TEXT = "".join(f"Line {i}: naïve text, again and again.\n" for i in range(5000))
ROWS = "\n".join(json.dumps({"text": f"row {i} é"}) for i in range(3000))


def compress(ending, data, request):
    if ending == ".gz":
        return gzip.compress(data)
    # The command writes a checksum; the package has to be told to.
    return request.getfixturevalue("zstandard").ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_compressed_file_holds_the_documents_of_the_plain_one(tmp_path, request, ending, parts):
    """In several members or frames too, as parallel compressors write and as files that were joined have."""
    for name, text, separator in (("a.txt", TEXT, "\n"), ("a.jsonl", ROWS, None)):
        data = text.encode()
        cuts = [len(data) * i // parts for i in range(parts + 1)]
        (tmp_path / name).write_bytes(data)
        packed = b"".join(compress(ending, data[a:b], request) for a, b in itertools.pairwise(cuts))
        (tmp_path / f"{name}{ending}").write_bytes(packed)
        plain = list(open_source(files=[tmp_path / name], separator=separator))
        assert len(plain) in (5000, 3000)
        assert list(open_source(files=[tmp_path / f"{name}{ending}"], separator=separator)) == plain


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_is_cut_off_or_damaged_is_refused_by_name(tmp_path, request, ending, name):
    file = tmp_path / f"{name}{ending}"
    data = compress(ending, (ROWS if "jsonl" in name else TEXT).encode(), request)
    damaged = data[:200] + bytes(byte ^ 0xFF for byte in data[200:220]) + data[220:]
    for broken in (data[: len(data) // 2], data[:-1], b"no such thing", damaged):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{name}{ending} is damaged or cut off \(.*[^.]\)\. Fetch it again, or"):
            list(open_source(files=[file]))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_what_is_held_does_not_grow_with_how_well_a_file_is_compressed(tmp_path, request, ending):
    file, n = tmp_path / f"a.txt{ending}", 1 << 28
    file.write_bytes(compress(ending, bytes(n), request))
    tracemalloc.start()
    try:
        with reading(file) as stream:
            found = sum(len(stream.read(1 << 13)) for _ in range(1 << 12))  # in pieces, as lines are read
        assert found == 1 << 25
        # 4 kB are 1024 blocks of 128 kB at most, half of the file; gzip's own part is far smaller.
        assert tracemalloc.get_traced_memory()[1] < 0.6 * n
    finally:
        tracemalloc.stop()


def test_bytes_that_are_no_text_are_placed_in_the_decompressed_text(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("naïve".encode("latin1")))
    with pytest.raises(DataError, match=r"byte 0xef at offset 2 of the decompressed text\."):
        list(open_source(files=[tmp_path / "a.txt.gz"]))


def test_a_folder_takes_compressed_text_and_leaves_compressed_archives(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"two\0\0\0"))
    source = open_source(files=[tmp_path])
    assert list(source) == ["one"]
    assert source.n_skipped == 1


def test_without_its_package_a_compressed_file_is_refused_with_the_way_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        MissingExtra, match=r"^reading a\.txt\.zst needs the package zstandard: pip install 'onehop-lm\[t"
    ):
        list(open_source(files=[tmp_path / "a.txt.zst"]))


@pytest.mark.parametrize("part", [1, 2, 3, 7, 1 << 20])
def test_documents_do_not_depend_on_how_much_is_read_at_once(tmp_path, monkeypatch, part):
    """Also where a read ends inside a separator or a character."""
    monkeypatch.setattr(lines, "_PART", part)
    text = "\ufeffé–one§§\ntwo§§\n§§\n\ufeffthree §§ and\n§§"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    found = list(lines.text_documents(tmp_path / "a.txt", "§§\n"))
    assert found == text.removeprefix("\ufeff").split("§§\n")
    (tmp_path / "a.txt").write_bytes(text.encode() + b"\xff")
    with pytest.raises(DataError, match=rf"byte 0xff at offset {len(text.encode())}\."):
        list(lines.text_documents(tmp_path / "a.txt", "§§\n"))
