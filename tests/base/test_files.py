import errno
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from onehop.base.errors import DataError, OnehopError
from onehop.base.files import append, atomic_file, atomic_folder, atomic_write

FULL = r"^cannot write .*a\.bin: the disk is full\. Free some space or write elsewhere\.$"


def names(folder):
    """Every name in a folder, hidden ones too: nothing may be left over."""
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("data", [b"\x00\xff", "naïve"], ids=["bytes", "text"])
def test_what_is_written_is_what_is_read(tmp_path, data):
    atomic_write(tmp_path / "deep" / "a.bin", data)
    assert (tmp_path / "deep" / "a.bin").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names(tmp_path / "deep") == ["a.bin"]


def test_until_the_block_ends_a_reader_sees_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_text("old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.bin"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.bin"]


def test_the_temporary_file_keeps_the_suffix_by_which_writers_choose_a_format(tmp_path):
    with atomic_file(tmp_path / "loss.png") as temporary:
        assert temporary.suffix == ".png"
        assert temporary.parent == tmp_path


def test_a_new_file_and_folder_have_the_modes_of_ordinary_ones(tmp_path):
    (tmp_path / "plain").write_text("")
    (tmp_path / "plain_folder").mkdir()
    atomic_write(tmp_path / "a.bin", b"")
    with atomic_folder(tmp_path / "folder"):
        pass
    for ours, ordinary in (("a.bin", "plain"), ("folder", "plain_folder")):
        assert stat.S_IMODE((tmp_path / ours).stat().st_mode) == stat.S_IMODE((tmp_path / ordinary).stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path):
    with pytest.raises(OnehopError, match=FULL), atomic_file(tmp_path / "a.bin"), open("/dev/full", "wb") as full:
        full.write(b"x")
        full.flush()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ('IoError(Os { code: 28, message: "No space left on device" })', FULL),
        ("I/O error: No space left on device (os error 28)", FULL),
        ("I/O error: File too large (os error 27)", r"^cannot write .*a\.bin: the file would be larger than this disk"),
    ],
)
def test_what_a_library_of_another_language_reports_of_the_disk_is_understood_too(tmp_path, told, text):
    with pytest.raises(OnehopError, match=text), atomic_file(tmp_path / "a.bin"):
        raise RuntimeError(told)
    assert names(tmp_path) == []


@pytest.mark.parametrize("write", [lambda path: atomic_write(path, b""), lambda path: atomic_folder(path).__enter__()])
def test_a_place_that_takes_no_files_is_told_by_its_own_name(tmp_path, monkeypatch, write):
    """As /proc is, whose error names the temporary file."""

    def refuse(self, *args, **options):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "mkdir", lambda self, **options: None if options else refuse(self))
    with pytest.raises(OnehopError) as told:
        write(tmp_path / "a.gguf")
    assert str(told.value) == f"cannot write {tmp_path}/a.gguf: No such file or directory. Choose another place."


@pytest.mark.parametrize("name", ["self", "self/a.bin"])
def test_a_link_that_leads_nowhere_is_told_as_one(tmp_path, name):
    (tmp_path / "self").symlink_to(tmp_path / "self")
    with pytest.raises(OnehopError, match=rf"^cannot write .*/{name}: a part of that path is a link that leads"):
        with atomic_folder(tmp_path / name):
            pass
    assert names(tmp_path) == ["self"]


def test_no_permission_is_one_clear_line(tmp_path):
    with pytest.raises(OnehopError, match=r"no permission to write there\. Choose another place\.$"):
        with atomic_file(tmp_path / "a.bin") as temporary:
            raise PermissionError(errno.EACCES, "Permission denied", str(temporary))


def test_an_error_about_another_file_is_not_blamed_on_the_one_being_written(tmp_path):
    with pytest.raises(PermissionError), atomic_file(tmp_path / "mine" / "a.bin"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "other" / "secret.txt"))


def test_our_own_errors_pass_through_unchanged(tmp_path):
    with pytest.raises(DataError, match=r"^No space left on device, they say$"), atomic_file(tmp_path / "a.bin"):
        raise DataError("No space left on device, they say")


@pytest.mark.parametrize("write", [lambda path: atomic_write(path, b""), lambda path: atomic_folder(path).__enter__()])
def test_a_file_in_the_way_of_a_folder_is_refused(tmp_path, write):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OnehopError, match=r"a part of that path is a file, not a folder\. Choose another place\.$"):
        write(tmp_path / "file" / "a.bin")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_in_the_way_of_a_file_is_refused(tmp_path):
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(OnehopError, match=r"that is a folder\. Name a file\.$"):
        atomic_write(tmp_path / "a.bin", b"")
    assert names(tmp_path) == ["a.bin"]


def test_a_name_that_no_disk_can_hold_is_refused(tmp_path):
    with pytest.raises(OnehopError, match=r"that name is too long\. Choose a shorter one\.$"):
        atomic_write(tmp_path / ("a" * 300), b"")
    assert names(tmp_path) == []


def test_a_folder_replaces_the_old_one_as_a_whole(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "stale").write_text("")
    with atomic_folder(folder) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "fresh").write_text("1")
        assert names(folder) == ["stale"]
    assert names(folder) == ["sub"]
    assert (folder / "sub" / "fresh").read_text() == "1"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("existed", [True, False])
def test_a_folder_that_fails_leaves_what_was_there(tmp_path, existed):
    folder = tmp_path / "run"
    if existed:
        folder.mkdir()
        (folder / "old").write_text("")
    with pytest.raises(ZeroDivisionError), atomic_folder(folder) as temporary:
        (temporary / "half").write_text("")
        raise ZeroDivisionError
    assert names(tmp_path) == (["run"] if existed else [])
    assert not existed or names(folder) == ["old"]


def test_a_folder_whose_renaming_fails_is_put_back(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "old").write_text("")
    replace = os.replace

    def fail_on_the_new_one(source, target):
        if os.path.exists(os.path.join(source, "new")):
            raise OSError(errno.EIO, "input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_on_the_new_one)
    with pytest.raises(OSError, match="input/output"), atomic_folder(folder) as temporary:
        (temporary / "new").write_text("")
    assert names(folder) == ["old"]
    assert names(tmp_path) == ["run"]


def test_a_link_to_a_folder_is_replaced_and_its_target_kept(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_folder(tmp_path / "link") as temporary:
        (temporary / "new").write_text("")
    assert names(tmp_path / "link") == ["new"]
    assert names(tmp_path / "target") == ["old"]
    assert names(tmp_path) == ["link", "target"]


def test_a_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "run").write_text("kept")
    with pytest.raises(OnehopError, match="a file of that name is there"), atomic_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "run").read_text() == "kept"


def test_text_is_added_to_the_end_of_a_file_that_may_be_missing(tmp_path):
    append(tmp_path / "deep" / "log", "one\n")
    append(tmp_path / "deep" / "log", "zwö\n")
    assert (tmp_path / "deep" / "log").read_text() == "one\nzwö\n"


@contextmanager
def room_for_ten_bytes():
    """No file of this process may grow above ten bytes: a write that crosses them is cut, and the next one fails.

    Not longer than a test's own lines: pytest's report may be a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_numbers_of_which_the_disk_takes_a_part_are_one_clear_line(tmp_path):
    """numpy tells no reason."""
    text = r"^cannot write .*a\.bin: the disk is full, or the file would be larger than allowed\. Free some space or"
    with room_for_ten_bytes(), pytest.raises(OnehopError, match=text), atomic_file(tmp_path / "a.bin") as temporary:
        np.zeros(100_000).tofile(temporary)
    assert names(tmp_path) == []


def test_what_cannot_be_added_as_a_whole_is_not_added_at_all(tmp_path):
    append(tmp_path / "log", "12345\n")
    with room_for_ten_bytes(), pytest.raises(OnehopError, match="the file would be larger than"):
        append(tmp_path / "log", "6789012345\n")
    assert (tmp_path / "log").read_text() == "12345\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_adding_to_a_full_disk_is_one_clear_line():
    with pytest.raises(OnehopError, match=r"^cannot write /dev/full: the disk is full\."):
        append("/dev/full", "x")
