import gzip
import json

import pytest

from onehop.base.errors import DataError, TextError
from onehop.config.data import MixtureSource
from onehop.data import sides
from onehop.data.loader import Loader
from onehop.data.prepare import prepare
from onehop.data.split import Split
from onehop.text.bpe import train_bpe


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text" / "story.txt"
    file.parent.mkdir()
    file.write_text("".join(f"There were {i} trees by the river.\n\n" for i in range(300)))
    return file


def words(side, tokenizer):
    return tokenizer.decode(side.tokens.tolist())


def test_text_becomes_a_tokenizer_and_both_sides_as_tokens(text, tmp_path):
    ready = prepare(folder=tmp_path / "data", files=[text], separator="\n\n", vocab_size=290)
    assert ready.tokenizer.vocab_size == 290
    assert ready.train.n_documents + ready.validation.n_documents == 300
    assert words(ready.train, ready.tokenizer).startswith("There were 0 trees by the river.There were 1 ")
    assert not ready.reused
    batch = Loader(ready.train, batch_size=2, length=32).batch(0)
    assert batch.packed


def test_unchanged_text_is_not_encoded_again_and_changed_text_is(text, tmp_path):
    options = {"folder": tmp_path / "data", "separator": "\n\n", "vocab_size": 300}
    first, again = (prepare(files=[text], **options) for _ in range(2))
    assert again.reused
    assert again.folder == first.folder
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert (again.train.tokens == first.train.tokens).all()
    text.write_text(text.read_text().replace("299", "300"))
    changed = prepare(files=[text], **options)
    assert not changed.reused
    for other in ({"vocab_size": 310}, {"seed": 1}, {"validation": 0.2}, {"tokenizer": "characters"}):
        assert not prepare(files=[text], **(options | other)).reused


def test_one_text_in_characters_is_cut_at_the_last_tenth(text, tmp_path):
    ready = prepare(folder=tmp_path / "data", files=[text], tokenizer="characters", validation=0.1)
    whole = text.read_text()
    cut = int(len(whole) * 0.9)
    assert words(ready.train, ready.tokenizer) == whole[:cut]
    assert words(ready.validation, ready.tokenizer) == whole[cut:]
    assert ready.tokenizer.vocab_size == len(set(whole))
    assert ready.validation.n_bytes == len(whole) - cut


def test_a_tokenizer_may_be_given_by_its_path(text, tmp_path):
    own = train_bpe(["There were trees"] * 2, vocab_size=270)
    own.save(tmp_path / "tokenizer")
    ready = prepare(folder=tmp_path / "data", files=[text], tokenizer=tmp_path / "tokenizer")
    assert ready.tokenizer.fingerprint == own.fingerprint
    with pytest.raises(TextError, match=r"data\.tokenizer=.*nowhere is neither bpe nor characters"):
        prepare(folder=tmp_path / "data", files=[text], tokenizer=tmp_path / "nowhere")


def test_the_validation_text_does_not_shape_the_tokenizer(tmp_path):
    documents = ["there and here "] * 60
    split = Split.of(documents, fraction=0.1, seed=0)
    rows = [{"text": "zz zz zz" if is_validation else text} for text, is_validation in split.apply(documents)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ready = prepare(folder=tmp_path / "data", files=[tmp_path / "rows.jsonl"], vocab_size=300, validation=0.1)
    assert "zz" in words(ready.validation, ready.tokenizer)
    assert "zz" not in ready.tokenizer.backend.get_vocab()
    assert "there" in ready.tokenizer.backend.get_vocab()


def test_a_large_text_trains_the_tokenizer_by_a_sample_from_all_over_it(text, tmp_path, monkeypatch):
    whole = prepare(folder=tmp_path / "data", files=[text], separator="\n\n", vocab_size=290)
    monkeypatch.setattr(sides, "_PER_TOKEN", 10)  # 2.9 kB of 10 kB
    monkeypatch.setattr(sides, "train_bpe", lambda documents, *, vocab_size: seen.extend(documents) or own)
    seen, own = [], whole.tokenizer
    prepare(folder=tmp_path / "other", files=[text], separator="\n\n", vocab_size=290)
    size = sum(map(len, seen))
    assert 2000 < size < 3800
    numbers = [int(part.split()[2]) for part in seen]
    assert min(numbers) < 30
    assert max(numbers) > 270


def test_a_failed_preparation_leaves_nothing_behind(tmp_path):
    lines = ['{"text": "a story"}'] * 6000  # the fault lies behind what is looked at first
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines, "{"]))
    with pytest.raises(DataError, match=r"rows\.jsonl:6001 is not JSON"):
        prepare(folder=tmp_path / "data", files=[tmp_path / "rows.jsonl"])
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_cut_off_leaves_nothing_behind(tmp_path):
    data = gzip.compress("\n".join(f'{{"text": "a story {i}"}}' for i in range(6000)).encode())
    (tmp_path / "rows.jsonl.gz").write_bytes(data[:-9])
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is damaged or cut off"):
        prepare(folder=tmp_path / "data", files=[tmp_path / "rows.jsonl.gz"])
    assert list((tmp_path / "data").iterdir()) == []


def test_damaged_shards_of_an_earlier_run_are_refused(text, tmp_path):
    ready = prepare(folder=tmp_path / "data", files=[text], tokenizer="characters")
    (ready.folder / "train.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.bin cannot be used: it holds 0 bytes instead of .*Delete "):
        prepare(folder=tmp_path / "data", files=[text], tokenizer="characters")


def test_empty_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="every document is empty"):
        prepare(folder=tmp_path / "data", files=[tmp_path / "empty.txt"])


def test_progress_is_reported(text, tmp_path):
    seen = set()
    prepare(
        folder=tmp_path / "data", files=[text], separator=" ", vocab_size=300, progress=lambda what, *_: seen.add(what)
    )
    assert seen == {"documents read for the tokenizer", "tokens to find in the text", "documents encoded"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"files": ["empty.txt"]},
            r"^data.mixture.b: there is no text .* Give data.mixture.b.files with text",
        ),
        ({"corpus": "fables"}, r"^data.mixture.b: .*data.mixture.b.n_documents=20000, .* data.stream=true"),
        ({"files": ["rows.jsonl"]}, r"^data.mixture.b: .*for example data.mixture.b.text_field=said"),
    ],
)
def test_what_is_wrong_with_a_source_of_a_mixture_names_it_and_its_own_keys(text, tmp_path, monkeypatch, keys, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"said": "a fox"}))
    mixture = [MixtureSource(name="a", files=[str(text)]), MixtureSource(name="b", **keys)]
    with pytest.raises(DataError, match=told):
        prepare(folder=tmp_path / "data", mixture=mixture)
    assert not list(tmp_path.glob("data/*"))


def test_a_damaged_tokenizer_of_an_earlier_run_is_refused_with_where_it_came_from(text, tmp_path):
    ready = prepare(folder=tmp_path / "data", files=[text], vocab_size=300)
    (ready.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a whole tokenizer.json .*delete .*; it is built again from the text\.$"):
        prepare(folder=tmp_path / "data", files=[text], vocab_size=300)
