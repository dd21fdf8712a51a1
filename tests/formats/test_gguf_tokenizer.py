"""The tokenizer inside a GGUF file gives the ids of the one that was written."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from onehop.base.errors import CheckpointError, ConfigError
from onehop.formats.gguf.cuts import CUTS, name_of, splitter
from onehop.formats.gguf.header import Header
from onehop.formats.gguf.pieces import equal, merges_of, scores_of
from onehop.formats.gguf.tokenizer import KEY, PAD, read_tokenizer, write_tokenizer
from onehop.text.bpe import train_bpe, train_characters
from onehop.text.settings import TokenizerSettings
from onehop.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import HARD_TEXTS, byte_fallback, bytes_only, unigram

WORDS = ["the cat sat on the mat, 12345 times; it's the cat's mat"] * 3


def through(tokenizer, *, n_rows=None, **changes):
    """A tokenizer as a file gives it back."""
    metadata = write_tokenizer(tokenizer, n_rows=n_rows or tokenizer.vocab_size) | changes
    return read_tokenizer(Header(Path("a.gguf"), metadata, {}))


def with_template(tokenizer):
    settings = TokenizerSettings(bos="<s>", eos="</s>", chat_templates={"default": "{{ messages }}", "tool_use": "x"})
    return Tokenizer(tokenizer.backend, settings)


TOKENIZERS = {
    "pieces": lambda: byte_fallback(add_bos=True),
    "pieces without a first space": lambda: byte_fallback(strip=False, bos_template=False, add_bos=False),
    "bytes": lambda: train_bpe(WORDS, vocab_size=290),
    "bytes without merges": lambda: cut("gpt-2", bytes_only(specials=("<|eos|>",), eos="<|eos|>")),
    "a template": lambda: with_template(byte_fallback()),
}


def cut(name, tokenizer):
    tokenizer.backend.pre_tokenizer = splitter(CUTS[name])
    return tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_comes_back_with_the_same_ids(name):
    ours = TOKENIZERS[name]()
    again = through(ours)
    for text in (*HARD_TEXTS, *WORDS):
        assert again.encode(text) == ours.encode(text), text
        assert again.encode(text, special=True) == ours.encode(text, special=True), text
        ids = ours.encode(text, bos=False)
        assert again.decode(ids) == ours.decode(ids)
    assert (again.bos_id, again.eos_id, again.eos_ids) == (ours.bos_id, ours.eos_id, ours.eos_ids)
    assert again.settings.chat_templates == ours.settings.chat_templates
    assert again.special_ids == ours.special_ids


@pytest.mark.parametrize("name", [name for name in CUTS if name != "default"])
def test_a_way_to_cut_is_known_again_by_a_name_that_means_the_same(name):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[], ignore_merges=CUTS[name].whole))
    backend.pre_tokenizer = splitter(CUTS[name])
    backend.normalizer = normalizers.NFC() if CUTS[name].nfc else None
    found = CUTS[name_of(backend)]
    assert (found.patterns, found.whole, found.nfc) == (CUTS[name].patterns, CUTS[name].whole, CUTS[name].nfc)


def test_published_spellings_of_the_same_cuts_are_known():
    """As the tokenizer.json of GPT-2, StarCoder and Falcon say it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    known = {
        "gpt-2": byte_level,
        "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "falcon": pre_tokenizers.Sequence([
            pre_tokenizers.Punctuation("contiguous"), byte_level,
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]),
    }  # fmt: skip
    for name, pre_tokenizer in known.items():
        backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
        backend.pre_tokenizer = pre_tokenizer
        assert name_of(backend) == name
        for text in (*HARD_TEXTS, *WORDS):
            ours = [piece for piece, _ in splitter(CUTS[name]).pre_tokenize_str(text)]
            assert ours == [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)], (name, text)


def test_scores_and_merges_say_the_same():
    """abc is best, then ab: it can be made of ab and c, or of a and bc; merges come in the order of the scores."""
    ids = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    merges = merges_of({"ab": -2.0, "bc": -3.0, "abc": -1.0}, ids)
    assert merges == [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "c")]
    assert scores_of(merges, ids) == {"a": 0, "b": 0, "c": 0, "abc": 0, "ab": -2, "bc": -3}
    assert equal(merges, [merges[1], merges[0], *merges[2:]])
    assert not equal(merges, [*merges[:2], merges[3], merges[2]])
    assert not equal(merges, merges[:3])


def test_a_vocabulary_is_filled_up_to_the_embedding_and_cut_again():
    ours = byte_fallback()
    metadata = write_tokenizer(ours, n_rows=ours.vocab_size + 5)
    assert len(metadata[f"{KEY}tokens"]) == ours.vocab_size + 5
    assert PAD.fullmatch(metadata[f"{KEY}tokens"][-1])
    assert through(ours, n_rows=ours.vocab_size + 5).vocab_size == ours.vocab_size


def test_user_defined_tokens_are_found_before_anything_is_merged():
    """Kind 4: in text as it stands, and no control token."""
    ours = byte_fallback()
    ours.backend.add_tokens([AddedToken("  ", normalized=False), AddedToken("the on", normalized=False)])
    ours = Tokenizer(ours.backend, ours.settings)
    again = through(ours)
    first = ours.backend.token_to_id("  ")
    for text in ("a  b", "the on the", "  ", *HARD_TEXTS):
        assert again.encode(text) == ours.encode(text)
    assert first in again.encode("a  b")
    assert first not in again.special_ids


def test_control_tokens_that_end_an_answer_are_known_by_their_text():
    ours = bytes_only(specials=("<|eos|>", "<|im_end|>"), eos="<|eos|>")
    assert through(cut("gpt-2", ours)).eos_ids == {256, 257}


def test_what_a_file_says_of_the_begin_token_counts_over_what_is_usual():
    ours = byte_fallback()
    assert through(ours).adds_bos
    assert not through(ours, **{f"{KEY}add_bos_token": False}).adds_bos
    metadata = write_tokenizer(ours, n_rows=ours.vocab_size)
    del metadata[f"{KEY}add_bos_token"]  # pieces begin with it unless told otherwise
    assert read_tokenizer(Header(Path("a.gguf"), metadata, {})).adds_bos


REFUSED = {
    "another kind": ({f"{KEY}model": "t5"}, "tokenizers of the kind 't5' cannot be read"),
    "an id beyond the tokens": ({f"{KEY}eos_token_id": 10_000}, "is no id of its"),
    "no tokens": ({f"{KEY}tokens": []}, "tokens is missing"),
    "scores that are too few": ({f"{KEY}scores": [0.0]}, "scores"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name):
    changes, text = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        through(byte_fallback(), **changes)
    assert text in str(caught.value)


def test_an_unknown_way_to_cut_is_refused_with_the_nearest():
    ours = cut("gpt-2", bytes_only())
    with pytest.raises(CheckpointError, match=r"pre='gpt2' is not known. Did you mean gpt-2\?"):
        through(ours, **{f"{KEY}pre": "gpt2"})
    with pytest.raises(CheckpointError, match="joins no two tokens"):
        through(ours, **{f"{KEY}merges": ["zz yy"]})


def test_what_no_file_can_hold_is_refused():
    for tokenizer in (unigram(), train_characters(["abc"])):
        with pytest.raises(ConfigError, match="has no name in GGUF"):
            write_tokenizer(tokenizer, n_rows=tokenizer.vocab_size)
    with pytest.raises(ConfigError, match="but the embedding only 3 rows"):
        write_tokenizer(byte_fallback(), n_rows=3)


def test_merges_that_no_scores_can_rank_are_refused():
    spec = json.loads(byte_fallback().backend.to_str())
    spec["model"]["merges"] = spec["model"]["merges"][:-1]  # a piece that nothing makes: scores would make it
    with pytest.raises(ConfigError, match="are no ranking of its pieces"):
        tokenizer = Tokenizer(Backend.from_str(json.dumps(spec)), TokenizerSettings(bos="<s>", eos="</s>"))
        write_tokenizer(tokenizer, n_rows=tokenizer.vocab_size)


def test_no_tokenizer_is_said_as_such():
    metadata = write_tokenizer(None, n_rows=5)
    assert metadata == {f"{KEY}model": "none"}
    assert read_tokenizer(Header(Path("a.gguf"), metadata, {})) is None


@pytest.mark.parametrize("name", [None, "default"])
def test_a_file_that_does_not_name_its_cuts_is_read_with_a_doubt(name):
    """Bytes only: pieces with scores need no cuts, and their files say default."""
    metadata = write_tokenizer(TOKENIZERS["bytes"](), n_rows=300)
    named = read_tokenizer(Header(Path("a.gguf"), metadata, {}))
    assert named.settings.doubt is None
    changed = {key: value for key, value in metadata.items() if key != f"{KEY}pre"} | (
        {f"{KEY}pre": name} if name else {}
    )
    doubt = read_tokenizer(Header(Path("a.gguf"), changed, {})).settings.doubt
    assert doubt.startswith(f"the file does not name its pre-tokenizer ({KEY}pre is {name or 'missing'})")
    assert "Get a file that names it" in doubt
    assert through(TOKENIZERS["pieces"]()).settings.doubt is None
