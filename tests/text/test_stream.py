import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import RequestError
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.stream import StopStrings, TextStream
from tests.text.small_tokenizers import HARD_TEXTS, byte_fallback, bytes_only, unigram

KINDS = {
    "bytes": bytes_only(),
    "byte fallback": byte_fallback(),
    "byte fallback without strip": byte_fallback(strip=False),
    "unigram": unigram(),
    "trained": train_bpe(list(HARD_TEXTS) * 3, vocab_size=500),
    "characters": train_characters(HARD_TEXTS),
}


def streamed(tokenizer, ids, **options):
    stream = TextStream(tokenizer, **options)
    pieces = [stream.push(token_id) for token_id in ids]
    return [*pieces, stream.close()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_streamed_text_is_the_whole_text(kind, text):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_any_ids_stream_to_what_they_decode_to(kind, data):
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    for skip_special, continues in itertools.product((True, False), repeat=2):
        options = {"skip_special": skip_special, "continues": continues}
        assert "".join(streamed(tokenizer, ids, **options)) == tokenizer.decode(ids, **options)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_an_answer_and_its_prompt_join_to_the_whole_text(kind, data):
    tokenizer = KINDS[kind]
    ids = [i for i in tokenizer.encode("the on the", bos=False) if i not in tokenizer.special_ids]
    cut = data.draw(st.integers(1, len(ids)))
    if "\ufffd" not in tokenizer.decode(ids[:cut]):
        assert tokenizer.decode(ids[:cut]) + tokenizer.decode(ids[cut:], continues=True) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["bytes", "byte fallback"])
def test_a_character_appears_with_its_last_byte_and_never_in_part(kind):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode("中👩", bos=False)[-7:]
    assert streamed(tokenizer, ids) == ["", "", "中", "", "", "", "👩", ""]


def test_an_unfinished_character_is_shown_as_broken_only_at_the_end():
    assert streamed(KINDS["bytes"], list("é".encode()[:1])) == ["", "\ufffd"]


def test_the_leading_space_of_a_sentencepiece_text_is_not_shown():
    tokenizer = KINDS["byte fallback"]
    assert streamed(tokenizer, tokenizer.encode("the on")) == ["", "the", " on", ""]


def results(stops, pieces):
    stop = StopStrings(stops)
    shown = ""
    for piece in pieces:
        emit, stopped = stop.push(piece)
        shown += emit
        if stopped:
            return shown, True
    return shown + stop.close(), False


def test_a_stop_string_across_token_borders_ends_the_text_before_it():
    stop = StopStrings(["END", "\n\n"])
    assert stop.push("the E") == ("the ", False)
    assert stop.push("N") == ("", False)
    assert stop.push("Ergy") == ("ENErgy", False)
    assert stop.push(" and\n") == (" and", False)
    assert stop.push("\nmore") == ("\n"[:0], True)
    assert stop.push("more") == ("", True)
    assert stop.close() == ""


def test_text_held_back_is_released_at_the_end():
    stop = StopStrings(["stop"])
    assert stop.push("do not sto") == ("do not ", False)
    assert stop.close() == "sto"


@settings(deadline=None)
@given(
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text(alphabet="abc", max_size=5), max_size=8),
)
def test_how_the_text_is_cut_does_not_change_where_it_stops(stops, pieces):
    text = "".join(pieces)
    whole = results(stops, [text])
    assert results(stops, pieces) == results(stops, list(text)) == whole
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert whole == ((text[: min(ends)[1]], True) if ends else (text, False))


@pytest.mark.parametrize("stops", ["text", [""], ["a", ""]])
def test_stops_that_are_no_list_of_strings_are_refused(stops):
    with pytest.raises(RequestError, match="is not a list of non-empty strings"):
        StopStrings(stops)
