import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from onehop.base.errors import TextError
from onehop.text.bpe import train_bpe
from onehop.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import HARD_TEXTS, byte_fallback, bytes_only, two_step_template, unigram

# text, ids where control tokens are allowed, ids as plain text (ids 0..255 are the bytes)
SPELLED = [
    ("a<|eos|>b", [97, 256, 98], list(b"a<|eos|>b")),
    ("<|im_start|>system\nno<|im_end|>", [257, *b"system\nno", 258], list(b"<|im_start|>system\nno<|im_end|>")),
    ("<|eos|", list(b"<|eos|"), list(b"<|eos|")),
    ("<|im_start|><|eos|>", [257, 256], list(b"<|im_start|><|eos|>")),
    ("é<|eos|>", [195, 169, 256], [195, 169, *b"<|eos|>"]),
    ("<<|eos|>>", [60, 256, 62], list(b"<<|eos|>>")),
]


@pytest.mark.parametrize(("text", "allowed", "plain"), SPELLED)
def test_text_that_spells_a_control_token_becomes_one_only_on_request(text, allowed, plain):
    tokenizer = bytes_only()
    assert tokenizer.encode(text, special=True) == allowed
    assert tokenizer.encode(text) == plain
    assert tokenizer.decode(plain) == tokenizer.decode(allowed, skip_special=False) == text


def test_special_tokens_are_skipped_on_decoding_unless_asked_for():
    tokenizer = bytes_only()
    assert tokenizer.decode([97, 256, 98]) == "ab"
    assert tokenizer.special_ids == {256, 257, 258}


def test_a_model_that_holds_its_control_tokens_as_strings_does_not_find_them_in_text():
    tokenizer = unigram()
    assert tokenizer.eos_id == 1
    assert 1 not in tokenizer.encode("the </s> end", bos=False)
    assert tokenizer.encode("the </s>", bos=False, special=True)[-1] == 1
    assert tokenizer.decode(tokenizer.encode("a</s>b", bos=False)) == "a</s>b"
    assert tokenizer.encode("the end", bos=False) == tokenizer.encode("the end", bos=False, special=True)


def test_the_checkpoints_rule_decides_about_the_begin_token_unless_the_caller_does():
    tokenizer = byte_fallback()
    words = tokenizer.encode("the on", bos=False)
    assert tokenizer.pieces.join(words) == "the on"
    assert tokenizer.encode("the on") == tokenizer.encode("the on", bos=True) == [1, *words]
    assert tokenizer.adds_bos


def test_the_config_overrules_the_post_processor():
    assert byte_fallback(add_bos=False).encode("on") == byte_fallback().encode("on", bos=False)
    assert byte_fallback(bos_template=False).encode("on") == byte_fallback().encode("on", bos=False)
    assert byte_fallback(bos_template=False, add_bos=True).encode("on") == byte_fallback().encode("on")
    assert byte_fallback(add_eos=True).encode("on") == [*byte_fallback().encode("on"), 2]


def test_a_saved_tokenizer_has_the_same_rule_for_readers_that_know_only_the_post_processor(tmp_path):
    for tokenizer in (byte_fallback(add_bos=False), byte_fallback(bos_template=False, add_bos=True, add_eos=True)):
        tokenizer.save(tmp_path)
        there = Backend.from_file(str(tmp_path / "tokenizer.json"))
        assert there.encode("the on").ids == tokenizer.encode("the on")


def test_transformers_reads_a_saved_tokenizer_as_the_same(tmp_path):
    from transformers import AutoTokenizer  # slow to import

    for number, tokenizer in enumerate(
        [
            byte_fallback(),
            unigram(),
            bytes_only(bos="<|im_start|>", eos="<|eos|>", add_bos=True),
            train_bpe(HARD_TEXTS, vocab_size=400),
        ]
    ):
        tokenizer.save(tmp_path / str(number))
        theirs = AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)
        for text in HARD_TEXTS:
            ids = theirs(text).input_ids
            assert tokenizer.encode(text, special=True) == ids
            assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_begin_token_is_never_doubled():
    tokenizer = two_step_template(bytes_only(("<|begin|>",), bos="<|begin|>", add_bos=True))
    assert tokenizer.encode("a") == [256, 97]
    assert tokenizer.encode("<|begin|>a", special=True) == [256, 97]
    assert tokenizer.encode("<|begin|>a", special=True, bos=True) == [256, 97]
    by_template_only = Tokenizer(tokenizer.backend, replace(tokenizer.settings, add_bos=None))
    assert by_template_only.encode("a") == [256, 97]


def test_an_encoder_tokenizer_ends_its_texts_by_its_own_rule():
    tokenizer = unigram()
    assert tokenizer.encode("the") == [3, 1]
    assert tokenizer.encode("the", bos=False) == [3]


def test_a_begin_token_that_does_not_exist_is_refused():
    with pytest.raises(TextError, match=r"no begin token: bos=True is impossible\. Use bos=None or bos=False"):
        bytes_only().encode("a", bos=True)
    with pytest.raises(TextError, match=r"adds bos_token='<nope>', which tokenizer\.json does not hold"):
        bytes_only(bos="<nope>", add_bos=True)


def test_the_vocabulary_size_is_the_largest_id_plus_one_and_the_count_is_the_count():
    backend = Backend(models.WordLevel({"a": 0, "b": 7}))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend)
    assert (tokenizer.n_tokens, tokenizer.vocab_size) == (2, 8)
    assert tokenizer.decode([0, 3, 7, 99]) == "ab"  # ids without a token add nothing
    assert tokenizer.token_bytes(3) == b""


@pytest.mark.parametrize("make", [bytes_only, byte_fallback, lambda: byte_fallback(strip=False)])
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_decoding_undoes_encoding(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text)
    if "▁" in text and make is not bytes_only:
        text = text.replace("▁", " ")  # SentencePiece spells its own space sign so
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=40))
def test_byte_level_decoding_of_any_ids_equals_the_library(ids):
    tokenizer = bytes_only()
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.backend.decode(ids, skip_special_tokens=False)


@settings(deadline=None)
@given(ids=st.lists(st.one_of(st.integers(259, 290), st.integers(0, 2), st.just(3 + 0x20)), max_size=40))
def test_byte_fallback_decoding_of_valid_text_equals_the_library(ids):
    for tokenizer in (byte_fallback(), byte_fallback(strip=False)):
        assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)


def test_a_broken_character_does_not_take_its_neighbours_with_it():
    tokenizer = byte_fallback()
    good, broken = "中".encode(), "文".encode()[:2]
    ids = [3 + byte for byte in (*good, *broken)]
    assert tokenizer.decode(ids) == "中\ufffd\ufffd"
    assert tokenizer.decode(ids[3:]) == tokenizer.backend.decode(ids[3:]) == "\ufffd\ufffd"


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 32), max_size=12))
def test_metaspace_decoding_of_any_ids_equals_the_library(ids):
    tokenizer = unigram()
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids)


def test_token_bytes_of_a_byte_level_text_join_to_its_utf8():
    tokenizer = bytes_only()
    text = "naïve 中文 👩🏽‍🚀"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    assert byte_fallback().token_bytes(3 + 0xE4) == b"\xe4"
    assert byte_fallback().token_bytes(2) == b"</s>"


@pytest.mark.parametrize("make", [bytes_only, byte_fallback, unigram])
def test_a_saved_tokenizer_is_the_same_tokenizer(make, tmp_path):
    tokenizer = make(chat_templates={"default": "{{ messages }}"})
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    for text in ("the on", "", "a</s>b <|eos|>"):
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.encode(text, special=True) == tokenizer.encode(text, special=True)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.chat_template == "{{ messages }}"
    assert (loaded.bos_id, loaded.eos_id, loaded.vocab_size) == (
        tokenizer.bos_id,
        tokenizer.eos_id,
        tokenizer.vocab_size,
    )
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("on") == tokenizer.encode("on")


def test_the_fingerprint_changes_when_an_encoding_could_change():
    assert len({byte_fallback().fingerprint, byte_fallback(add_bos=False).fingerprint, bytes_only().fingerprint}) == 3


def test_every_file_that_names_an_end_token_counts(tmp_path):
    bytes_only(eos="<|eos|>").save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 258]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 257}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_id == 256
    assert tokenizer.eos_ids == {256, 257, 258}


def test_tokens_may_be_written_as_dictionaries_and_in_the_older_file(tmp_path):
    bytes_only().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>", "lstrip": False}})
    )
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<|im_start|>", "eos_token": "<|eos|>"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (257, 258)


def test_an_end_token_that_the_file_calls_ordinary_is_a_control_token_all_the_same():
    backend = bytes_only().backend
    backend.add_tokens([AddedToken("<end>", special=False, normalized=False)])
    tokenizer = Tokenizer(backend, replace(bytes_only().settings, eos="<end>"))
    assert tokenizer.encode("<end>") == list(b"<end>")
    assert tokenizer.encode("<end>", special=True) == [259]
    assert tokenizer.decode([97, 259]) == "a"


def test_truncation_padding_and_merge_dropout_of_the_file_are_switched_off():
    backend = Backend(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9))
    backend.decoder = decoders.Fuse()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer(backend).encode("ababab") == [2, 2, 2]


def test_a_missing_or_damaged_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(TextError, match=r"tokenizer\.json does not exist\. Give a folder that holds a tokenizer\.json"):
        Tokenizer.load(tmp_path)
    bytes_only().save(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(TextError, match=r"tokenizer\.json is not a whole tokenizer\.json .*Get it again") as refusal:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(refusal.value)
    (tmp_path / "tokenizer.json").write_text(whole)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TextError, match=r"tokenizer_config\.json is not readable JSON"):
        Tokenizer.load(tmp_path)


def test_a_decoder_of_another_kind_is_refused_by_name():
    backend = Backend(models.WordLevel({"a": 0}))
    backend.decoder = decoders.CTC()
    with pytest.raises(TextError, match=r"decodes with CTC, which onehop does not read\. It reads ByteLevel"):
        Tokenizer(backend)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(TextError, match="half a surrogate pair"):
        bytes_only().encode("\ud800")


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_many_texts_at_once_give_what_they_give_alone(text):
    tokenizer = byte_fallback()
    assert tokenizer.encode_many([text, "on"]) == [tokenizer.encode(text, bos=False), tokenizer.encode("on", bos=False)]


def test_an_answer_after_a_prompt_keeps_its_leading_space():
    for tokenizer in (byte_fallback(), unigram()):
        ids = tokenizer.encode("the", bos=False)
        assert tokenizer.decode(ids) == "the"
        assert tokenizer.decode(ids, continues=True) == " the"


def test_words_without_a_decoder_are_separated_by_spaces_as_in_the_library():
    backend = Backend(models.WordLevel({"a": 0, "b": 1}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Tokenizer(backend).decode([0, 1, 0]) == backend.decode([0, 1, 0]) == "a b a"
