"""The Python standard library as a corpus."""

import json.decoder
from pathlib import Path

import pytest

from onehop.base.errors import DataError
from onehop.data import stdlib


def test_the_library_holds_its_modules_and_none_of_its_tests() -> None:
    files = stdlib.source_files()
    names = [path.as_posix() for path in files]
    assert any(name.endswith("json/decoder.py") for name in names)
    assert any(name.endswith("/textwrap.py") for name in names)
    assert not any(part in name for name in names for part in ("/test/", "/tests/", "/idle_test/", "site-packages"))


def test_the_documents_are_the_files_word_for_word_and_always_the_same() -> None:
    documents = list(stdlib.documents(0))
    assert Path(json.decoder.__file__).read_text(encoding="utf-8") in documents
    assert documents == list(stdlib.documents(1))
    assert len(documents) > 300  # every supported Python has twice as many


def test_the_order_is_that_of_the_paths_whatever_the_file_system_says(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "a.py", "c/test/x.py", "site-packages/y.py", "_sysconfigdata_linux.py", "n.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    assert list(stdlib.documents(0, root=tmp_path)) == ["# a.py\n", "# a/z.py\n", "# b.py\n"]


def test_files_that_are_empty_or_not_utf8_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"")
    (tmp_path / "b.py").write_bytes("# -*- coding: latin-1 -*-\ns = 'é'\n".encode("latin-1"))
    (tmp_path / "c.py").write_text("s = 'é'\n", encoding="utf-8")
    assert list(stdlib.documents(0, root=tmp_path)) == ["s = 'é'\n"]


def test_a_limit_draws_by_the_seed_and_keeps_the_order(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_text(f"x = {number}\n")
    everything = list(stdlib.documents(0, root=tmp_path))
    some = list(stdlib.documents(0, limit=5, root=tmp_path))
    assert len(some) == 5
    assert some == [text for text in everything if text in some]
    assert some == list(stdlib.documents(0, limit=5, root=tmp_path))
    assert some != list(stdlib.documents(1, limit=5, root=tmp_path))


def test_more_documents_than_there_are_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(DataError, match=r"data\.n_documents=2: python-stdlib has 1 documents"):
        stdlib.documents(0, limit=2, root=tmp_path)


def test_an_interpreter_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no sources of its standard library .* data\.files=FOLDER"):
        stdlib.documents(0, root=tmp_path / "python311.zip")
