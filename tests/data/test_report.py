import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onehop.base.errors import DataError
from onehop.config.data import MixtureSource
from onehop.data.loader import Loader
from onehop.data.pack import StreamRows, pack_whole
from onehop.data.prepare import prepare
from onehop.data.report import behind_cuts, data_report, report_lines
from onehop.data.sources import open_source, without_duplicates


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=30), length=st.integers(2, 24))
def test_tokens_behind_a_cut_are_those_that_the_rows_show_in_later_pieces(lengths, length):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    for packing, table in (
        ("whole", pack_whole(starts, length, seed=0)),
        ("stream", StreamRows(length, starts, -(-starts[-1] // length))),
    ):
        segments = table.segments(np.arange(table.n_rows))
        later = ~np.isin(segments.start, starts)
        shown = int(segments.size[later].sum())
        behind = behind_cuts(starts, length, packing)
        # Best fit leaves out a rest of one token, which is only a target.
        alone = sum(n > length and n % length == 1 for n in lengths) if packing == "whole" else 0
        assert behind.sum() == shown + alone


@pytest.fixture
def prepared(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "abcdefg"[: 3 + i % 4]}) for i in range(40)))
    return prepare(folder=tmp_path / "data", files=[tmp_path / "a.jsonl"], tokenizer="characters", validation=0.25)


def test_the_report_counts_what_is_there(prepared):
    report = data_report(prepared, Loader(prepared.train, batch_size=2, length=5))
    (row,) = report["sources"]
    n_long = int((np.diff(prepared.train.starts) == 6).sum())
    assert (report["packing"], report["streamed"]) == ("whole", False)
    assert (row["documents"], row["tokens"], row["bytes"], row["bytes_per_token"]) == (40, 180, 180, 1.0)
    assert row["epoch_tokens"] == prepared.train.n_tokens
    assert row["cut_documents"] == row["cropped_tokens"] == n_long > 0  # a sixth letter is a target, in no row
    assert row["cut_share"]["whole"] == pytest.approx(n_long / prepared.train.n_tokens, abs=1e-6)
    assert row["cut_share"]["stream"] > row["cut_share"]["whole"]
    by_stream = data_report(prepared, Loader(prepared.train, batch_size=2, length=5, packing="stream"))
    assert by_stream["sources"][0]["cut_documents"] > n_long


def test_the_report_in_words(prepared):
    lines = list(report_lines(data_report(prepared, Loader(prepared.train, batch_size=2, length=5))))
    assert lines[0] == "data: 40 documents, 180 tokens, 1.00 bytes per token"
    assert lines[1].startswith("packing: ")
    assert "behind a cut in their document: " in lines[1]
    assert "% with packing=whole, " in lines[1]
    assert len(lines) == 2


def test_of_a_mixture_the_report_tells_shares_and_dropped_duplicates(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": f"tale {i % 30}"}) for i in range(60)))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": f"tale {i}"}) for i in range(20, 90)))
    mixture = [
        MixtureSource(name=name, files=[str(tmp_path / f"{name}.jsonl")], weight=weight)
        for name, weight in (("a", 3), ("b", 1))
    ]
    options = {"folder": tmp_path / "data", "mixture": mixture, "vocab_size": 300, "deduplicate": True}
    for _ in range(2):  # as it is made, and as it is found again
        ready = prepare(**options)
        report = data_report(ready, Loader(ready.train, batch_size=2, length=8))
        rows = {row["name"]: row for row in report["sources"]}
        assert [(row["share"], row["documents"], row["duplicates"]) for row in rows.values()] == [
            (0.75, 30, 30), (0.25, 60, 10),
        ]  # fmt: skip
    lines = list(report_lines(report))
    assert lines[0].startswith("data: 90 documents, ")
    assert lines[0].endswith(", 40 duplicates dropped")
    assert lines[2].startswith("  a: 75.0% of the tokens by weight, 3")
    again = prepare(**options | {"mixture": [part.model_copy(update={"weight": 5.0}) for part in mixture]})
    assert again.identity != ready.identity
    assert not prepare(**options | {"deduplicate": False}).reused


def test_a_source_that_repeats_the_others_is_refused_as_what_it_is(tmp_path):
    (tmp_path / "a.txt").write_text("one|two|three|four")
    (tmp_path / "b.txt").write_text("two|four|two")
    mixture = [MixtureSource(name=name, files=[str(tmp_path / f"{name}.txt")], separator="|") for name in ("a", "b")]
    with pytest.raises(DataError) as told:
        prepare(folder=tmp_path / "data", mixture=mixture, vocab_size=258, deduplicate=True)
    assert str(told.value) == (
        "data.mixture.b: each of its documents is equal to one of an earlier source, and data.deduplicate=true drops "
        "them. Leave one of the two out."
    )
    assert prepare(folder=tmp_path / "data", mixture=mixture, vocab_size=258).n_duplicates == (0, 0)


def test_of_a_streamed_text_the_validation_side_is_counted(tmp_path):
    ready = prepare(folder=tmp_path / "data", corpus="fables", n_documents=60, stream=True, vocab_size=300)
    report = data_report(ready, Loader(ready.train, batch_size=2, length=8))
    assert report["streamed"]
    assert report["sources"][0]["documents"] == ready.validation.n_documents
    assert next(report_lines(report)).endswith(" bytes per token on the validation side")


def test_duplicates_are_dropped_across_sources_and_a_number_counts_those_that_stay(tmp_path):
    (tmp_path / "a.txt").write_text("one|two|one| |three|two|four|five")
    (tmp_path / "b.txt").write_text("five|six|two|one |six")
    a, b = (open_source(files=[tmp_path / name], separator="|") for name in ("a.txt", "b.txt"))
    once = without_duplicates([a, b])
    assert list(once[0]) == ["one", "two", "three", "four", "five"]
    assert list(once[1]) == ["six", "one "]  # another document
    assert [len(source.dropped) for source in once] == [2, 3]
    four = open_source(files=[tmp_path / "a.txt"], separator="|", n_documents=4)
    assert [list(source) for source in without_duplicates([four, b])] == [
        ["one", "two", "three", "four"],
        ["five", "six", "one "],
    ]
