import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.text import tokenizer as tokenizer_module
from onehop.text.bpe import train_bpe
from onehop.text.cuts import pieces_of
from tests.text.small_tokenizers import HARD_TEXTS

TEXTS = st.text(alphabet="ab1 '.\n\r\t\u2028\xa0é", max_size=60)


@pytest.fixture(scope="module")
def bpe():
    return train_bpe([*HARD_TEXTS, "a b\n\n a.\n\nb's\n 1\r\n" * 9], vocab_size=330)


@settings(deadline=None)
@given(text=TEXTS, size=st.integers(1, 9))
def test_pieces_join_to_the_text_and_encode_to_its_ids(bpe, text, size):
    pieces = list(pieces_of(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) >= size for piece in pieces[:-1])
    assert [i for piece in pieces for i in bpe.encode(piece, bos=False)] == bpe.encode(text, bos=False)


def test_a_long_text_is_encoded_in_pieces_to_the_same_ids(bpe, monkeypatch):
    text = "".join(HARD_TEXTS) + "a line\n  another\n\nb\n" * 50
    whole = bpe.encode(text)
    monkeypatch.setattr(tokenizer_module, "LONG", 10)
    assert len(list(pieces_of(text, 10))) > 20
    assert bpe.encode(text) == whole
