"""A tiktoken file gives the ids that tiktoken gives."""

import base64
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import TextError
from onehop.text.bpe import train_bpe
from onehop.text.pieces import byte_of_character
from onehop.text.tiktoken_file import SCHEMES, Scheme, backend_of_ranks
from onehop.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import HARD_TEXTS

WORDS = (
    "It's a tale of the king, and THE queen; they'll say that 1234567 is in the house.\r\n\r\n  def f(x): return x\n"
    "Größe naïve café Ελληνικά русский 中文 日本語 हिन्दी ไทย العربية עברית iPhone DON'T 'ſ aaaaaaaa\t\n \n 👩🏽‍🚀 ½\n"
)
TEXTS = (*HARD_TEXTS, WORDS, WORDS.upper(), (WORDS * 40).replace(" ", "").replace("\n", ""), " " * 3000, "\n \r\n" * 50)


def ranks_of(size):
    """The bytes and what byte-pair encoding finds in WORDS; then tokens of three bytes that no merge can make."""
    trained = train_bpe([WORDS] * 5, vocab_size=420).backend.get_vocab(with_added_tokens=False)
    table = byte_of_character()
    tokens = [bytes(table[c] for c in token) for token, _ in sorted(trained.items(), key=lambda pair: pair[1])]
    single = [bytes([byte]) for byte in range(256)]
    ranks = dict.fromkeys([*single, b"\n\n", *(token for token in tokens if len(token) > 1)])
    spare = (bytes(three) for three in itertools.product(range(0x80, 0xC0), repeat=3))  # no UTF-8: in no text
    ranks |= dict.fromkeys(itertools.islice((token for token in spare if token not in ranks), size - len(ranks)))
    return {token: rank for rank, token in enumerate(ranks)}


def write(file, ranks):
    file.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    return file


@pytest.fixture(scope="module")
def small():
    return ranks_of(450)


@pytest.fixture(scope="module")
def pairs(small):
    """Our tokenizer and theirs for each row of the table, with the same few ranks."""
    tiktoken = pytest.importorskip("tiktoken")
    return {
        size: (
            Tokenizer(backend_of_ranks(small, Scheme(scheme.pattern))),
            tiktoken.Encoding("x", pat_str=scheme.pattern, mergeable_ranks=small, special_tokens={}),
        )
        for size, scheme in SCHEMES.items()
    }


@pytest.mark.parametrize("size", SCHEMES)
def test_each_pattern_of_the_table_cuts_as_tiktoken_does(pairs, size):
    ours, theirs = pairs[size]
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text[:60]
        assert ours.decode(ours.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("aAbé'sſtÉǅ1 \t\n\r.,/¡中👩\u0301\u200d\u00a0"), max_size=40) | st.text())
def test_any_text_at_all_has_the_same_ids(pairs, text):
    for ours, theirs in pairs.values():
        assert ours.encode(text) == theirs.encode(text)


def test_a_folder_with_nothing_else_is_a_tokenizer_with_its_control_tokens(tmp_path):
    ranks = ranks_of(128_000)
    write(tmp_path / "tokenizer.model", ranks)
    ours = Tokenizer.load(tmp_path)
    chat = "<|begin_of_text|><|start_header_id|>a<|end_header_id|>\n\nb<|eot_id|>"
    assert ours.encode(chat, bos=False, special=True) == [128_000, 128_006, 97, 128_007, ranks[b"\n\n"], 98, 128_009]
    assert ours.decode(ours.encode(chat)) == chat
    assert not ours.special_ids & set(ours.encode(chat, bos=False))
    assert ours.encode("a\ta") == [128_000, ord("a"), ord("\t"), ord("a")]
    assert (ours.bos_id, ours.eos_id, ours.vocab_size) == (128_000, 128_001, 128_256)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode(WORDS) == ours.encode(WORDS)


def test_names_of_control_tokens_in_the_json_replace_those_of_the_table(tmp_path):
    write(tmp_path / "some.tiktoken", ranks_of(128_000))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"128008": {"content": "<|eom_id|>", "special": true}}, "add_bos_token": false}'
    )
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("a<|eom_id|>", special=True)[-1] == 128_008
    assert ours.encode("a") == [ord("a")]


def test_a_file_that_is_damaged_or_unknown_is_refused_in_one_line(tmp_path, small):
    whole = write(tmp_path / "x.tiktoken", small).read_bytes()
    lines = whole.splitlines(keepends=True)
    for data, text in {
        whole: "holds 450 ranks, and which pattern cuts its words is not known. Known: files of 50256, 100256",
        b"".join([*lines[:30], b"no base64!\n", *lines[30:]]): "line 31 is no token and rank",
        b"".join([*lines, lines[0]]): None,
        b"".join(lines[1:]): "the byte 0 has no rank",
        lines[0] + whole.replace(b" 7\n", b" 6\n"): "a rank occurs twice",
    }.items():
        (tmp_path / "x.tiktoken").write_bytes(data)
        with pytest.raises(TextError, match=text) as caught:
            Tokenizer.load(tmp_path)
        assert "\n" not in str(caught.value)
