import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from onehop.base.errors import DataError, TextError
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import HARD_TEXTS

# Word counts with pairs that overlap themselves and no ties; merges and their counts by naive recounting.
WORDS = {
    "aaaa": 53, "aaab": 13, "baaa": 7, "cdabdbd": 20, "abbcdc": 25, "bbcca": 41, "bb": 14, "bcbd": 30, "aaadcbd": 59,
    "dd": 51, "bacccaa": 13, "baaad": 14, "bacbd": 47, "ddbab": 45, "ddb": 51, "aabac": 57,
}  # fmt: skip
MERGES = [
    ("a", "a"), ("b", "d"), ("b", "a"), ("d", "d"), ("c", "bd"), ("aa", "a"), ("b", "b"), ("aaa", "d"), ("ba", "c"),
    ("bb", "c"), ("aaad", "cbd"), ("aa", "bac"), ("aa", "aa"), ("dd", "b"),
]  # fmt: skip


def merges_of(tokenizer):
    return [tuple(pair) for pair in json.loads(tokenizer.backend.to_str())["model"]["merges"]]


def test_merges_are_the_most_frequent_pairs_recounted_after_every_merge():
    documents = [word for word, count in WORDS.items() for _ in range(count)]
    random.Random(0).shuffle(documents)
    assert merges_of(train_bpe(documents, vocab_size=258 + len(MERGES))) == MERGES


def test_the_order_of_the_documents_does_not_matter():
    documents = [f"{word} {other}\n" * (count % 7 + 1) for word, count in WORDS.items() for other in ("of", "and", "9")]
    shuffled = documents[:]
    random.Random(1).shuffle(shuffled)
    assert train_bpe(documents, vocab_size=330).fingerprint == train_bpe(shuffled, vocab_size=330).fingerprint


@pytest.mark.parametrize(
    ("word", "tokens"),
    [
        ("abc", ["abc"]),
        ("abcd", ["abc", "d"]),
        ("ababc", ["ab", "abc"]),
        ("aab", ["a", "ab"]),
        ("aaaa", ["aa", "aa"]),
        ("aaaaa", ["aa", "aaa"]),
        ("bcd", ["bcd"]),
        ("abab", ["ab", "ab"]),
        ("cdcd", ["cd", "cd"]),
        ("dabcab", ["d", "abc", "ab"]),
    ],
)
def test_merges_apply_by_rank_and_not_by_length(word, tokens):
    merges = [("b", "c"), ("a", "b"), ("c", "d"), ("a", "bc"), ("bc", "d"), ("a", "a"), ("aa", "a")]
    vocab = {token: i for i, token in enumerate(["a", "b", "c", "d", *("".join(pair) for pair in merges)])}
    backend = Backend(models.BPE(vocab, merges))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend)
    assert [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(word)] == tokens


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(["the trophy did not fit in the suitcase; it was 12345 cm too big.\r\n" * 5], vocab_size=300)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_texts_survive(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


@settings(deadline=None)
@given(text=st.text())
def test_every_text_survives(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text
    assert bpe.decode(bpe.encode(text, bos=False)) == text


def test_begin_and_end_are_the_first_two_ids_and_a_text_begins_with_begin(bpe):
    assert (bpe.bos_id, bpe.eos_id, bpe.eos_ids, bpe.special_ids) == (0, 1, {1}, {0, 1})
    assert bpe.encode("the")[0] == 0
    assert len(bpe.encode("the")) == 2
    assert bpe.vocab_size == bpe.n_tokens == 300


def test_no_merge_crosses_words_or_groups_of_three_digits(bpe):
    tokens = [bpe.token_bytes(i).decode() for i in bpe.encode(" the the 12345", bos=False)]
    assert tokens == [" the", " the", " ", "123", "45"]


def test_a_small_corpus_gives_fewer_tokens_than_asked_for():
    assert train_bpe(["aaaa"], vocab_size=1000).vocab_size < 1000


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(TextError, match=r"data\.vocab_size=200 has no room for the 256 bytes .*Give at least 258"):
        train_bpe(["a"], vocab_size=200)


@pytest.mark.parametrize("train", [lambda documents: train_bpe(documents, vocab_size=300), train_characters])
def test_no_text_is_refused(train):
    with pytest.raises(DataError, match="there is no text to train a tokenizer on"):
        train(["", ""])


@settings(deadline=None)
@given(text=st.text(alphabet="ab \n\r\t\x00é中👩\u200d\u0301", max_size=30))
def test_characters_survive_one_id_each(text):
    tokenizer = train_characters(["ab \n\r\t\x00é", "中👩\u200d\u0301"])
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert [found.ids for found in tokenizer.backend.encode_batch([text])] == [ids]  # as any reader of the file does


def test_characters_are_numbered_by_code_point_and_have_no_control_tokens():
    tokenizer = train_characters(["hello\n"])
    assert tokenizer.encode("\nehlo") == [0, 1, 2, 3, 4]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.special_ids, tokenizer.vocab_size) == (None, None, set(), 5)


def test_an_unknown_character_is_refused_by_name(tmp_path):
    train_characters(["abc"]).save(tmp_path)
    with pytest.raises(
        TextError, match=r"the character 'é' \(at 1\) is not among the 3 characters .*data\.tokenizer=bpe"
    ):
        Tokenizer.load(tmp_path).encode("aé")
