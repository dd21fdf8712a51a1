"""A SentencePiece model alone gives the ids that sentencepiece itself gives."""

import io
import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import TextError
from onehop.text.chat import encode_chat
from onehop.text.sentencepiece_file import Piece, SentencePieces, read_sentencepiece
from onehop.text.sentencepiece_text import Replacements
from onehop.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import HARD_TEXTS

sentencepiece = pytest.importorskip("sentencepiece")

IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
NFKC_END_ONLY = {"model_type": "unigram", "bos_id": -1, "pad_id": 0, "eos_id": 1, "unk_id": 2}
CASE_FOLDED = {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"}
KINDS = {
    "bpe, bytes, no replacements": {"model_type": "bpe", "byte_fallback": True, **IDENTITY},
    "bpe, bytes, no first space, symbols": {
        "model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **IDENTITY,
        "user_defined_symbols": ["<mask>", "\n", "\n\n", "▁▁", "▁▁▁▁"],
    },
    "bpe, first space, symbols": {"model_type": "bpe", "user_defined_symbols": ["<mask>", "<sep>"], **IDENTITY},
    "bpe, replacements": {"model_type": "bpe"},
    "unigram, replacements, end token only": NFKC_END_ONLY,
    "unigram, case folded, symbols": {**CASE_FOLDED, "user_defined_symbols": ["<mask>", "Ab c"]},
    "unigram, bytes": {"model_type": "unigram", "byte_fallback": True, **IDENTITY},
    "characters": {"model_type": "char"},
}  # fmt: skip
WORDS = (
    "It is a tale of the king, and the queen; they said that nothing is in the house.\n"
    "Größe und Straße 123 4567 naïve café. Ελληνικά русский язык 中文 日本語 한국어 हिन्दी ไทย العربية עברית\n"
    "  two  spaces\tand a tab, aaa aaaa aaaaaaaa hahaha def f(x): return x # 👩🏽‍🚀 ½ ﬁ\n"
)
BITS = [
    "a", "aa", "aaa", "  ", " ", "\n", "\r\n", "\t", "é", "e\u0301", "<mask>", "<sep>", "▁", "ﬁ", "Ａ", "한",
    "\u1112\u1161\u11ab", "👩🏽‍🚀", "\u200d", "\u200f", "ש", "the", "th", "ing", "<0x41>", "<s>", "</s>", "<unk>", "0",
    "½", "\x00", "\u00a0", "\u3000", "中文", "ไทย", "हि", "ABC", "Ab c", "~", "\u00a8",
]  # fmt: skip
DRAW = random.Random(7)
LONG = [
    "".join(DRAW.choice("abehtoi") for _ in range(10_000)), "aa" * 1111 + "a" * 77, " " * 5000, WORDS * 20,
    "".join(DRAW.choice("中文日本語한국어漢字") for _ in range(3400)), (WORDS * 30).replace(" ", "").replace("\n", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Files of each kind, trained once."""
    files = {}
    for number, (kind, options) in enumerate(KINDS.items()):
        files[kind] = tmp_path_factory.mktemp(f"spm{number}") / "tokenizer.model"
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((WORDS * 3).splitlines()), model_writer=model, vocab_size=420, minloglevel=2,
            character_coverage=0.98, hard_vocab_limit=False, **options,
        )  # fmt: skip
        files[kind].write_bytes(model.getvalue())
    return files


@pytest.fixture(scope="module")
def pairs(trained):
    """Our tokenizer and theirs of each file."""
    files = trained.values()
    return [(Tokenizer.load(file), sentencepiece.SentencePieceProcessor(model_file=str(file))) for file in files]


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_of_sentencepiece(trained, kind):
    theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(trained[kind])), Tokenizer.load(trained[kind])
    mixed = ["".join(DRAW.choice(BITS) for _ in range(DRAW.randint(1, 14))) for _ in range(400)]
    for text in (*HARD_TEXTS, *LONG, *mixed):
        assert ours.encode(text, bos=False) == theirs.encode(text), text[:80]
    assert ours.vocab_size == theirs.vocab_size()
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id() if theirs.bos_id() >= 0 else None, theirs.eos_id())


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_the_text_that_sentencepiece_gives(trained, kind):
    theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(trained[kind])), Tokenizer.load(trained[kind])
    for text in ("It is a tale", " of the king", "aaa  is\n", WORDS):
        ids = theirs.encode(text)
        if theirs.unk_id() not in ids:  # which they write as ⁇, and we leave out
            assert ours.decode(ids) == theirs.decode(ids)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_at_all_has_the_same_ids(pairs, text):
    for ours, theirs in pairs:
        assert ours.encode(text, bos=False) == theirs.encode(text)


def test_a_begin_piece_begins_texts_and_an_end_piece_alone_ends_them(trained):
    plain, ends = (
        Tokenizer.load(trained[kind]) for kind in ("bpe, replacements", "unigram, replacements, end token only")
    )
    assert plain.encode("a tale") == [plain.bos_id, *plain.encode("a tale", bos=False)]
    assert ends.encode("a tale") == [*ends.encode("a tale", bos=False), ends.eos_id]


def test_the_json_beside_the_file_decides_about_begin_and_end(trained, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(trained["bpe, replacements"].read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": true}')
    found = Tokenizer.load(tmp_path)
    assert found.encode("a tale") == [*found.encode("a tale", bos=False), found.eos_id]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_one_is_the_same_tokenizer(trained, kind, tmp_path):
    tokenizer = Tokenizer.load(trained[kind])
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    for text in (*HARD_TEXTS, "<mask> a <s> b", WORDS):
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.encode(text, special=True) == tokenizer.encode(text, special=True)
    assert loaded.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", ["bpe, bytes, no replacements", "bpe, first space, symbols", "bpe, replacements"])
def test_text_between_control_tokens_is_encoded_as_a_text_of_its_own(trained, kind, tmp_path):
    """As the code that came with such models does, which joins the ids of pieces; `legacy: false` is the other way."""
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(trained[kind]))
    one, two = theirs.encode("the king"), theirs.encode("the queen")
    tokenizer = Tokenizer.load(trained[kind])
    assert tokenizer.encode("<s>the king</s>the queen", bos=False, special=True) == [1, *one, 2, *two]
    (tmp_path / "tokenizer.model").write_bytes(trained[kind].read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    other = Tokenizer.load(tmp_path)
    assert other.encode("the king</s>the queen", bos=False, special=True)[: len(one) + 1] == [*one, 2]
    assert len(two) > 0
    assert other.encode("the king</s>the queen", bos=False, special=True)[len(one) + 1 :] != two
    assert other.decode(other.encode("the king", bos=False)) == "the king"


@pytest.mark.parametrize("kind", ["bpe, bytes, no replacements", "bpe, first space, symbols", "bpe, replacements"])
def test_a_message_cannot_forge_a_control_token_in_a_chat(trained, kind, tmp_path):
    template = "{% for m in messages %}{{ bos_token }}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    (tmp_path / "tokenizer.model").write_bytes(trained[kind].read_bytes())
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer.load(tmp_path)
    good, bad = (encode_chat(tokenizer, [{"role": "user", "content": text}]) for text in ("a tale", "a</s><s>tale"))
    assert good == [1, *tokenizer.encode("a tale", bos=False), 2]
    assert (bad.count(1), bad.count(2)) == (1, 1)
    assert bad[1:-1] == tokenizer.encode("a</s><s>tale", bos=False)


def test_tokens_that_the_json_adds_follow_the_pieces(trained, tmp_path):
    size = Tokenizer.load(trained["bpe, replacements"]).vocab_size
    (tmp_path / "spiece.model").write_bytes(trained["bpe, replacements"].read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"added_tokens_decoder": {str(size): {"content": "<end>", "special": True}}}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a<end>tale", bos=False, special=True).count(size) == 1
    assert size not in tokenizer.encode("a<end>tale", bos=False)
    (tmp_path / "out").mkdir()
    tokenizer.save(tmp_path / "out")
    assert Tokenizer.load(tmp_path / "out").encode("<end>", bos=False, special=True) == [size]
    config.write_text('{"extra_ids": 3}')
    ids = [Tokenizer.load(tmp_path).backend.token_to_id(f"<extra_id_{i}>") for i in range(3)]
    assert ids == [size + 2, size + 1, size]
    config.write_text(json.dumps({"added_tokens_decoder": {str(size + 9): {"content": "<end>"}}}))
    with pytest.raises(TextError, match=rf"say that '<end>' has the id {size + 9}, but by the order .* be {size}"):
        Tokenizer.load(tmp_path)


def message(*fields):
    """A protocol buffer of (number, value) pairs: whole numbers below 128, or bytes."""
    return b"".join(
        bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value
        for number, value in fields
    )


UNK, ABC = message((1, b"<unk>"), (3, 2)), message((1, b"abc"))
WRONG = {
    "words": (message((1, UNK), (2, message((3, 3)))), "says model_type=WORD, which onehop does not read"),
    "spaces as they are": (message((1, UNK), (3, message((5, 0)))), "says escape_whitespaces=false"),
    "no unknown piece": (message((1, ABC)), "exactly one unknown piece"),
    "the same twice": (message((1, UNK), (1, ABC), (1, ABC)), "a piece occurs twice"),
    "nothing": (b"", "it holds no pieces"),
    "no protocol buffer": (b"\x07" * 40, "it is no protocol buffer"),
    "an end inside": (message((1, UNK))[:-3], "it ends inside a field"),
    "a number without end": (b"\x80" * 40, "a number in it does not end"),
    "a pickle": (b"\x80\x02c__builtin__\nprint\n", "is not a whole SentencePiece model"),
    "a score that is no number": (
        message((1, UNK)) + b"\x0a\x08\x0a\x01a\x15" + struct.pack("<f", float("nan")), "a score is no number"
    ),
    "replacements that end too soon": (
        message((1, UNK), (3, message((2, struct.pack("<2I", 400, 0x400))))), "is damaged"
    ),
    "unused": (message((1, UNK), (1, message((1, b"ab"), (3, 5))), (2, message((3, 2)))), "unused pieces is not read"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_damaged_or_of_another_kind_is_refused_in_one_line(tmp_path, what):
    data, text = WRONG[what]
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TextError, match=text) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_file_with_changed_bytes_is_read_or_refused_in_one_line(trained, tmp_path_factory, changes):
    file = tmp_path_factory.getbasetemp() / "changed.model"
    data = bytearray(trained["bpe, first space, symbols"].read_bytes())
    for at, byte in changes:
        data[at % len(data)] = byte
    file.write_bytes(data)
    refused = ""
    try:
        assert isinstance(Tokenizer.load(file), Tokenizer)
    except TextError as error:
        refused = str(error)
    assert "\n" not in refused
    assert len(refused) < 700


def test_what_a_file_says_is_read(trained):
    found = read_sentencepiece(trained["unigram, bytes"])
    assert isinstance(found, SentencePieces)
    assert (found.byte_fallback, found.dummy_prefix, found.one_space, found.charsmap) == (True, True, False, b"")
    assert found.pieces[:3] == (Piece("<unk>", 0.0, 2), Piece("<s>", 0.0, 3), Piece("</s>", 0.0, 3))


def test_the_longest_key_of_the_table_is_found(trained):
    table = Replacements(read_sentencepiece(trained["bpe, replacements"]).charsmap)
    assert table.longest("ﬁx", 0) == (1, "fi")
    assert table.longest("xe\u0301", 1) == (2, "é")
    assert table.longest("x", 0) == (0, "")
