import gzip
import itertools
import json

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from onehop.base.errors import DataError
from onehop.config.data import MixtureSource
from onehop.data import live, sides
from onehop.data.loader import Loader
from onehop.data.prepare import prepare
from onehop.text.tokenizer import Tokenizer

FIELDS = ("tokens", "targets", "doc", "at")


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(live, "WINDOW", 1500)
    monkeypatch.setattr(sides, "HEAD", 2000)


@pytest.fixture
def files(tmp_path):
    """Three files with some 6,000 characters, one of them compressed, with empty documents between others."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(3):
        rows = [{"text": " " if j % 7 == 3 else f"In file {i} stand {j} trees. " * (1 + j % 4)} for j in range(40)]
        data = "\n".join(map(json.dumps, rows)).encode()
        (folder / f"{i}.jsonl.gz").write_bytes(gzip.compress(data)) if i == 1 else (folder / f"{i}.jsonl").write_bytes(
            data
        )
    return [folder]


def ready(tmp_path, files, **options):
    return prepare(folder=tmp_path / "data", files=files, stream=True, vocab_size=300, **options)


def batches_of(prepared, numbers, packing="whole"):
    loader = Loader(prepared.train, batch_size=4, length=16, packing=packing, seed=2)
    return [loader.batch(number) for number in numbers]


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


@pytest.mark.parametrize("packing", ["whole", "stream"])
@pytest.mark.parametrize("noted", [True, False], ids=["with its notes", "without them"])
def test_a_streamed_text_gives_the_same_rows_after_a_restart_at_any_row(tmp_path, files, packing, noted):
    first = batches_of(ready(tmp_path, files), range(150), packing)  # several times through the text
    for start in (0, 1, 37, 149, 80):
        if not noted:
            for file in (tmp_path / "data").rglob("places-*"):
                file.unlink()
        again = ready(tmp_path, files)
        assert again.reused
        assert all(
            same(a, b) for a, b in zip(batches_of(again, range(start, 150), packing), first[start:], strict=True)
        )


def test_a_restart_begins_at_the_window_that_it_left_and_in_its_file(tmp_path, files, monkeypatch):
    prepared = ready(tmp_path, files)
    expected = batches_of(prepared, [30])
    started = []
    real = live.Live.documents
    monkeypatch.setattr(live.Live, "documents", lambda self, start: started.append(start) or real(self, start))
    assert same(batches_of(ready(tmp_path, files), [30])[0], expected[0])
    assert started[0].file > 0
    assert started[0].number > 40


def test_rows_can_be_asked_for_in_any_order(tmp_path, files):
    prepared = ready(tmp_path, files)
    expected = batches_of(prepared, range(60))
    for file in (tmp_path / "data").rglob("places-*"):
        file.unlink()
    order = [59, 3, 30, 31, 0, 58, 14, 15, 16]
    assert all(same(a, expected[n]) for a, n in zip(batches_of(prepared, order), order, strict=True))


def test_what_a_killed_run_left_half_written_among_the_notes_does_no_harm(tmp_path, files):
    expected = batches_of(ready(tmp_path, files), range(60))
    (notes,) = (tmp_path / "data").rglob("places-*")
    whole = notes.read_text()
    for text in (whole[:-9], whole[: len(whole) // 2], "{}\n" + whole, whole + whole, ""):
        notes.write_text(text)
        assert all(same(a, b) for a, b in zip(batches_of(ready(tmp_path, files), range(60)), expected, strict=True))


def test_an_epoch_holds_every_training_document_once_and_none_of_the_validation_side(tmp_path, files):
    prepared = ready(tmp_path, files)
    loader = Loader(prepared.train, batch_size=1, length=64)
    held = prepared.validation
    kept = [prepared.tokenizer.decode(held.tokens[a:b].tolist()) for a, b in itertools.pairwise(held.starts.tolist())]
    documents = [f"In file {i} stand {j} trees. " * (1 + j % 4) for i in range(3) for j in range(40) if j % 7 != 3]
    assert kept
    assert set(kept) < set(documents)
    expected = [text for text in documents if text not in kept]
    seen, numbers = [], itertools.count()
    while len(seen) < len(expected):
        batch = loader.batch(next(numbers))
        texts = [batch.tokens[batch.doc == doc].tolist() for doc in range(int(batch.doc.max()) + 1)]
        seen.extend(map(prepared.tokenizer.decode, texts))
    assert sorted(seen) == sorted(expected)
    assert seen != expected


def test_only_the_validation_side_and_the_places_of_windows_are_on_disk(tmp_path, files):
    prepared = ready(tmp_path, files)
    batches_of(prepared, range(20))
    names = {file.name for file in prepared.folder.iterdir()}
    assert names == {
        "tokenizer.json", "tokenizer_config.json", "source.json", "places-16-whole-2.jsonl",
        "validation.bin", "validation.json", "validation.starts",
    }  # fmt: skip


def test_an_endless_corpus_can_be_streamed_without_a_number(tmp_path):
    prepared = prepare(folder=tmp_path / "data", corpus="fables", stream=True, vocab_size=300)
    first = batches_of(prepared, range(30))
    assert same(batches_of(prepared, [29])[0], first[29])
    rows = torch.cat([batch.tokens for batch in first])
    assert len(torch.unique(rows, dim=0)) > 110  # a text that began again would repeat them


def test_a_number_of_documents_ends_the_epoch(tmp_path, files):
    few = ready(tmp_path, files, n_documents=10)
    rows = torch.cat([batch.tokens for batch in batches_of(few, range(40))])
    assert "In file 1" not in few.tokenizer.decode(rows.flatten().tolist())


def test_a_single_document_is_cut_and_its_end_never_trained_on(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"Line {i} of one text.\n" for i in range(400)))
    prepared = ready(tmp_path, [tmp_path / "a.txt"], validation=0.5)
    text = prepared.tokenizer.decode(torch.cat([b.tokens for b in batches_of(prepared, range(100))]).flatten().tolist())
    assert "Line 150" in text
    assert "Line 250" not in text


def test_sources_of_a_mixture_are_streamed_each_by_itself(tmp_path, files):
    mixture = [
        MixtureSource(name="trees", files=list(map(str, files)), weight=1),
        MixtureSource(name="told", corpus="fables"),
    ]
    prepared = prepare(folder=tmp_path / "data", mixture=mixture, stream=True, vocab_size=300)
    first = batches_of(prepared, range(40))
    again = prepare(folder=tmp_path / "data", mixture=mixture, stream=True, vocab_size=300)
    assert again.reused
    assert same(batches_of(again, [33])[0], first[33])
    begins = [prepared.tokenizer.decode(row[:6].tolist()) for batch in first for row in batch.tokens]
    assert 0.3 < sum("In file" in begin for begin in begins) / len(begins) < 0.5  # half, but rows cut in their midst


def test_a_text_without_anything_to_predict_is_refused(tmp_path):
    backend = Backend(models.WordLevel({"a": 0}))
    backend.decoder = decoders.Fuse()
    Tokenizer(backend).save(tmp_path / "t")
    (tmp_path / "a.txt").write_text("a|a|a|a|a|a")
    prepared = prepare(
        folder=tmp_path / "d", files=[tmp_path / "a.txt"], separator="|", stream=True, tokenizer=tmp_path / "t"
    )
    with pytest.raises(DataError, match=r"a\.txt \(11 B\) has nothing to predict\. Give more text\.$"):
        batches_of(prepared, [0])
