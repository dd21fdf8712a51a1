import itertools
import json
import os

import pytest

from onehop.base.errors import ConfigError, DataError
from onehop.data.sources import open_source


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_text("bee")
    (tmp_path / "a.md").write_text("ay")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.py").write_text("see = 1\n")
    (tmp_path / "deep" / "rows.jsonl").write_text('{"text": "one"}\n\n{"text": "two", "n": 2}\n')
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden too")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    return tmp_path


def test_a_folder_is_read_sorted_without_hidden_binary_and_empty_files(folder):
    source = open_source(files=[folder])
    assert list(source) == ["ay", "bee", "see = 1\n", "one", "two"]
    assert list(source) == list(source)
    assert source.n_skipped == 3
    assert source.description == "5 files (56 B)"


def test_what_a_run_has_written_in_a_folder_of_texts_is_no_text(folder):
    everything = list(open_source(files=[folder]))
    run, encoded = folder / "out" / "first", folder / "out" / "data" / "5eed"
    for place, names in (
        (run, ["recipe.toml", "metrics.jsonl", "samples.txt", "sub/note.txt"]),
        (encoded, ["source.json", "tokenizer.json", "train.bin"]),
    ):
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)
    assert list(open_source(files=[folder])) == everything
    assert list(open_source(files=[f"{folder}/**/*.txt"])) == list(open_source(files=[f"{folder}/*.txt"]))
    assert list(open_source(files=[run / "samples.txt", run / "sub"])) == ["samples.txt", "sub/note.txt"]


@pytest.mark.parametrize("target", ["loop", "nowhere"])
@pytest.mark.parametrize("inside", ["", "/text.txt"])
def test_a_link_that_leads_nowhere_is_refused_by_its_name(tmp_path, target, inside):
    link = tmp_path / "loop"
    link.symlink_to(target)
    with pytest.raises(DataError) as told:
        open_source(files=[f"{link}{inside}"])
    assert str(told.value) == (
        f"data.files={link}{inside}: {link} is a link that leads nowhere. Mend it, or leave it out."
    )


def test_a_pipe_is_no_file_that_is_missing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe is neither a file nor a folder\. Give a file that can be read twice"):
        open_source(files=[tmp_path / "pipe"])


def test_files_globs_and_folders_come_in_the_order_given_and_each_file_once(folder):
    assert list(open_source(files=[folder / "b.txt", f"{folder}/*.md", folder / "a.md"])) == ["bee", "ay"]
    assert list(open_source(files=[f"{folder}/**/*.py"])) == ["see = 1\n"]


def test_a_number_of_documents_is_the_first_ones(folder):
    assert list(open_source(files=[folder], n_documents=3)) == ["ay", "bee", "see = 1\n"]


def test_a_separator_splits_a_file_and_what_is_empty_between_is_no_document(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n---\ntwo\n---\n\n---\n".encode())
    assert list(open_source(files=[tmp_path / "a.txt"], separator="---\n")) == ["one\r\n", "two\n"]


def test_json_lines_are_taken_from_the_named_field(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"story": "é\nline 2", "text": "no"}) + "\n" + '{"story": "end"}')
    assert list(open_source(files=[tmp_path / "a.jsonl"], text_field="story")) == ["é\nline 2", "end"]


def test_a_built_in_corpus_is_the_same_each_time_and_another_with_another_seed():
    stories = list(open_source(corpus="fables", n_documents=4, seed=1))
    assert len(stories) == 4
    assert stories == list(open_source(corpus="fables", n_documents=4, seed=1))
    assert stories != list(open_source(corpus="fables", n_documents=4, seed=2))
    assert len(list(itertools.islice(open_source(corpus="python-stdlib"), 3))) == 3


def test_the_fingerprint_follows_the_contents_and_not_the_place(folder, tmp_path):
    one = open_source(files=[folder / "b.txt"]).fingerprint()
    (tmp_path / "copy.txt").write_text("bee")
    assert open_source(files=[tmp_path / "copy.txt"]).fingerprint() == one
    (folder / "b.txt").write_text("bea")
    changed = open_source(files=[folder / "b.txt"])
    assert changed.fingerprint() != one
    assert open_source(files=[folder / "b.txt"], separator="e").fingerprint() != changed.fingerprint()
    fables = [
        open_source(corpus="fables", n_documents=n, seed=seed).fingerprint() for n, seed in ((4, 1), (5, 1), (4, 2))
    ]
    assert len(set(fables)) == 3


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"files": ["nothing.txt"]}, r"^data\.files=nothing\.txt does not exist\. Give a file, a folder, or a pattern"),
        ({"files": ["*.tyt"]}, r"^data\.files=\*\.tyt: no file matches\. Quote the pattern"),
        ({"files": ["."]}, r"^data\.files=\.: no text file in that folder\."),
        ({"files": ["x"], "corpus": "fables"}, r"^data\.corpus=fables and data\.files=x: give one of the two\.$"),
        ({}, r"^there is no text: give data\.files=PATH or data\.corpus \(one of fables, python-stdlib, dates\)\.$"),
        (
            {"corpus": "fables"},
            r"^the corpus fables is endless\. Say how many .*data\.n_documents=20000, or .*data\.stream=true\.$",
        ),
        ({"files": ["."], "separator": ""}, r"^data\.separator is empty\."),
        ({"corpus": "fables", "n_documents": -1}, r"^n_documents=-1 leaves no document to read\. Use 1 or more"),
        ({"corpus": "fables", "n_documents": 1, "seed": -1}, r"^seed=-1 must be 0 or more\.$"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(options, refusal):
    with pytest.raises(DataError, match=refusal):
        open_source(**options)


def test_an_unknown_corpus_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean fables"):
        open_source(corpus="fabels")


def test_bytes_that_are_no_text_are_refused_with_file_and_offset(tmp_path):
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin1"))
    with pytest.raises(
        DataError, match=r"latin\.txt is not UTF-8 text: byte 0xef at offset 2\. Convert it \(iconv -f latin1"
    ):
        list(open_source(files=[tmp_path / "latin.txt"]))
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl is not UTF-8 text: byte 0xff at offset 24\."):
        list(open_source(files=[tmp_path / "rows.jsonl"]))


@pytest.mark.parametrize("coding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("order", ["le", "be"])
def test_a_byte_order_mark_tells_the_encoding_to_convert_from(tmp_path, coding, name, order):
    (tmp_path / name).write_bytes('\ufeff{"text": "a"}\n'.encode(f"{coding}-{order}"))
    with pytest.raises(DataError, match=rf"is not UTF-8 text: .*\(iconv -f {coding} -t utf-8\), or leave it out\.$"):
        list(open_source(files=[tmp_path / name]))


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ('{"body": "b"}', r"rows\.jsonl:2 has no field 'text'\. .*data\.text_field=body\.$"),
        ("{}", r"rows\.jsonl:2 has no field 'text'\. .*data\.text_field=NAME\.$"),
        (
            '{"text": 5, "body": "b"}',
            r"rows\.jsonl:2: the field 'text' is 5, no text\. Give a text, or drop that line\.$",
        ),
        ('{"text": null}', r"rows\.jsonl:2: the field 'text' is null, no text\."),
        ("[1]", r'rows\.jsonl:2 is \[1\], no JSON object\. Each line must be one, like {"text": "…"}\.$'),
        ("[" * 100_000, r"rows\.jsonl:2 is not JSON .*Each line must be one JSON object\.$"),
        ('{"text": "b"', r"rows\.jsonl:2 is not JSON .*Each line must be one JSON object\.$"),
    ],
)
def test_a_json_line_without_text_is_refused_by_its_number(tmp_path, line, refusal):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(DataError, match=refusal):
        list(open_source(files=[tmp_path / "rows.jsonl"]))


def test_half_a_character_in_a_json_line_is_refused_by_its_number(tmp_path):
    """Python's and JavaScript's json write the halves of a cut pair as escapes, which no UTF-8 file can hold."""
    (tmp_path / "rows.jsonl").write_text(r'{"text": "\ud83d\ude00"}' + "\n" + r'{"text": "a \ud83d b"}')
    with pytest.raises(DataError, match=r"rows\.jsonl:2 holds half a character \(\\ud83d\)\. Remove it there"):
        list(open_source(files=[tmp_path / "rows.jsonl"]))


def test_an_option_that_no_file_listens_to_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a|b")
    (tmp_path / "a.jsonl").write_text('{"text": "c", "body": "d"}')
    plain, lines = [tmp_path / "a.txt"], [tmp_path / "a.jsonl"]
    with pytest.raises(DataError, match=r"^data\.separator='\|' has no effect: each line of a \.jsonl file"):
        open_source(files=lines, separator="|")
    with pytest.raises(DataError, match=r"^data\.text_field=body has no effect: no file ends in \.jsonl"):
        open_source(files=plain, text_field="body")
    assert list(open_source(files=plain + lines, separator="|", text_field="body")) == ["a", "b", "d"]
