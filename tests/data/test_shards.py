import itertools
import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from onehop.base.errors import DataError
from onehop.data import shards
from onehop.data.shards import Shards, write_shards
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.settings import TokenizerSettings
from onehop.text.tokenizer import Tokenizer

DOCUMENTS = [("the cat", False), ("naïve", True), ("a", False), ("the the the", False)]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe([document for document, _ in DOCUMENTS] * 3, vocab_size=300)


def test_documents_come_back_from_the_shards_with_their_borders(bpe, tmp_path):
    write_shards(tmp_path, DOCUMENTS, bpe)
    train, validation = Shards.open(tmp_path, "train"), Shards.open(tmp_path, "validation")
    assert (train.n_documents, validation.n_documents) == (3, 1)
    texts = []
    for i in range(train.n_documents):
        ids = train.tokens[train.starts[i] : train.starts[i + 1]].tolist()
        assert (ids[0], ids[-1]) == (bpe.bos_id, bpe.eos_id)
        texts.append(bpe.decode(ids))
    assert texts == ["the cat", "a", "the the the"]
    assert train.tokens.dtype == np.uint16
    assert isinstance(train.tokens, np.memmap)
    assert validation.n_bytes == len("naïve".encode())
    assert train.n_targets == train.n_tokens - 3


def test_a_tokenizer_with_one_control_token_has_it_at_both_ends_and_one_with_none_has_no_borders(tmp_path):
    backend = Backend(models.BPE({"a": 0, "b": 1, "<end>": 2}, []))
    backend.decoder = decoders.Fuse()
    for number, (bos, eos, expected) in enumerate(
        [(None, "<end>", [2, 0, 1, 2]), ("<end>", None, [2, 0, 1, 2]), (None, None, [0, 1])]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_shards(folder, [("ab", False), ("b", True)], Tokenizer(backend, TokenizerSettings(bos=bos, eos=eos)))
        assert Shards.open(folder, "train").tokens.tolist() == expected


def test_text_is_read_a_group_ahead_of_what_is_encoded_and_no_further(bpe, monkeypatch):
    """What is held does not grow with the text."""
    monkeypatch.setattr(shards, "_AT_ONCE", 100)
    read = []
    texts = (read.append(i) or ("a text of 25 characters..", i) for i in range(1000))
    groups = shards.encoded(texts, bpe)
    for n, group in enumerate(itertools.islice(groups, 5), start=1):
        assert [tag for _, tag, _ in group] == list(range(n * 4 - 4, n * 4))
        assert len(read) == (n + 1) * 4


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path):
    backend = Backend(models.WordLevel({"a": 0, "b": 70_000}))
    backend.decoder = decoders.Fuse()
    write_shards(tmp_path, [("b", False), ("a", True)], Tokenizer(backend))
    train = Shards.open(tmp_path, "train")
    assert train.tokens.dtype == np.uint32
    assert train.tokens.tolist() == [70_000]


def test_a_loss_per_token_becomes_bits_per_byte(tmp_path):
    write_shards(tmp_path, [("aaaa", False), ("aé", True)], train_characters(["aé"]))
    validation = Shards.open(tmp_path, "validation")
    # one target in three bytes: ln 2 nats are one bit, for three bytes
    assert validation.bits_per_byte(np.log(2)) == pytest.approx(1 / 3, rel=1e-12)


def test_progress_counts_documents(bpe, tmp_path):
    seen = []
    write_shards(tmp_path, DOCUMENTS, bpe, progress=lambda *what: seen.append(what))
    assert seen == [("documents encoded", 4, None)]


@pytest.mark.parametrize("only", [True, False])
def test_a_side_without_documents_is_refused(bpe, tmp_path, only):
    name = "train" if only else "validation"
    with pytest.raises(DataError, match=rf"the {name} side of the split got none of 2 documents\. Change data\.valid"):
        write_shards(tmp_path, [("a", only), ("b", only)], bpe)


@pytest.mark.parametrize("name", ["train.bin", "train.starts", "train.json"])
@pytest.mark.parametrize("fault", ["missing", "truncated", "changed"])
def test_damaged_shards_are_refused_by_name(bpe, tmp_path, name, fault):
    write_shards(tmp_path, DOCUMENTS, bpe)
    file = tmp_path / name
    data = file.read_bytes()
    reason = {"missing": "it is missing", "truncated": "bytes instead of", "changed": "do not match their checksum"}[
        fault
    ]
    if name == "train.json" and fault != "missing":
        reason = "not the description of token shards"
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-3] if fault == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DataError, match=rf"{name} cannot be used: .*{reason}.*Delete .* it is built again"):
        Shards.open(tmp_path, "train")


def test_shards_of_another_format_are_refused(bpe, tmp_path):
    write_shards(tmp_path, DOCUMENTS, bpe)
    about = json.loads((tmp_path / "train.json").read_text())
    (tmp_path / "train.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(DataError, match="it has format 99, and this onehop reads 1"):
        Shards.open(tmp_path, "train")
