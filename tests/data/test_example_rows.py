"""Rows of conversations: every learned token is a target once, from the token before it, and no other token is."""

import gzip
import json

import numpy as np
import pytest

from onehop.base.errors import DataError
from onehop.data.chat import chat_examples
from onehop.data.example_rows import RowLoader, chat_rows, evaluation_rows
from onehop.data.examples import Example, Examples, write_examples
from onehop.data.pack import NO_TARGET, pack_whole
from onehop.data.pairs import texts_of
from onehop.data.records import read_records, record_files
from tests.text.test_turns import CHATML, TALK, tokenizer


def stored(folder, examples):
    """All but one of the examples, on disk and read again."""
    write_examples(folder, examples, validation=1e-9, seed=0)
    return Examples.open(folder, "train")


def made(n=30):
    """Conversations of unequal length whose tokens are all different; some of each are learned."""
    rng, examples, first = np.random.default_rng(0), [], 0
    for size in rng.integers(3, 12, n):
        learned = rng.random(size) < 0.4
        learned[0], learned[-1] = False, True
        examples.append(Example(list(range(first, first + size)), learned.tolist()))
        first += size
    return examples


def test_each_learned_token_is_asked_for_once_after_the_token_before_it(tmp_path):
    examples = stored(tmp_path, made())
    table = pack_whole(examples.starts, 16, seed=0)
    rows = evaluation_rows(chat_rows(examples, table), np.arange(table.n_rows), batch_size=4)
    seen = []
    for batch in rows:
        asked = batch.targets != NO_TARGET
        assert (batch.targets[asked] == batch.tokens[asked] + 1).all()
        assert batch.n_targets == int(asked.sum())
        seen += batch.targets[asked].tolist()
    assert sorted(seen) == examples.tokens[examples.learned].tolist()
    assert len(seen) == examples.n_targets < examples.n_tokens / 1.5
    assert batch.packed


def test_an_epoch_has_every_row_once_and_any_batch_can_be_asked_for():
    def make(rows, epochs):
        return rows.tolist(), epochs.tolist()

    loader = RowLoader(make, np.array([3, 5, 8, 9, 11]), batch_size=2, seed=0, about="")
    found = [batch for batch, _ in zip(loader.batches(), range(10), strict=False)]
    order, epochs = ([n for batch in found for n in batch[i]] for i in range(2))
    assert epochs == sorted(epochs) == [e for e in range(4) for _ in range(5)]
    each = [order[5 * e : 5 * e + 5] for e in range(4)]
    assert all(sorted(epoch) == [3, 5, 8, 9, 11] for epoch in each)
    assert len({tuple(epoch) for epoch in each}) > 1
    assert next(loader.batches(7)) == loader.batch(7) == found[7]
    with pytest.raises(DataError, match="no example fits into a row"):
        RowLoader(make, np.zeros(0, dtype=int), batch_size=2, seed=0, about="")


def test_conversations_are_read_from_compressed_json_lines_too(tmp_path):
    lines = "\n".join(json.dumps({"messages": TALK}) for _ in range(3)) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    found = [
        list(chat_examples(read_records(record_files([tmp_path / name])), tokenizer(CHATML)))
        for name in ("a.jsonl", "b.jsonl.gz")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 3


@pytest.mark.parametrize("ending", [".tsv", ".jsonl"])
def test_pairs_are_read_from_both_kinds_of_file_and_lines_are_told_by_number(tmp_path, ending):
    file, pairs = tmp_path / f"a{ending}", [("a b", "c"), ("d", "e f")]
    lines = ["\t".join(pair) if ending == ".tsv" else json.dumps(dict(zip("xy", pair, strict=True))) for pair in pairs]
    file.write_text("\n\n".join(lines))

    def read():
        return list(texts_of(read_records(record_files([file]), columns=("x", "y")), ("x", "y")))

    assert read() == pairs
    file.write_text(file.read_text() + "\n5\n")
    with pytest.raises(DataError, match=rf"a\{ending}:4 (has 1 columns: a pair has two|holds no JSON object)"):
        read()


def test_half_a_character_in_a_pair_is_refused_with_its_line():
    records = [("a.jsonl:1", {"x": "a", "y": "b"}), ("a.jsonl:2", {"x": "a", "y": "\ud83d b"})]
    with pytest.raises(DataError, match=r"^a\.jsonl:2 holds half a character \(\\ud83d\)\."):
        list(texts_of(records, ("x", "y")))


def test_a_weight_between_learned_and_not_is_refused():
    talk = [TALK[0], {"role": "assistant", "content": "x", "weight": 0.5}]
    with pytest.raises(DataError, match=r"^a:1: message 2 has the weight 0\.5\. Use 1 .* or 0 "):
        list(chat_examples([("a:1", {"messages": talk})], tokenizer(CHATML)))


def test_a_template_gets_the_tools_of_a_line():
    template = "{{ tools | length if tools else 0 }};" + CHATML
    records = [("a:1", {"messages": TALK}), ("a:2", {"messages": TALK, "tools": [{"name": "x"}]})]
    first, second = chat_examples(records, tokenizer(template))
    assert (first.tokens[0], second.tokens[0]) == tuple(tokenizer(template).encode("01"))
    assert first.learned == second.learned


def test_a_damaged_array_is_refused_by_name(tmp_path):
    stored(tmp_path, made(4))
    file = tmp_path / "train.tokens.npy"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=r"train\.tokens\.npy cannot be used"):
        Examples.open(tmp_path, "train")


PARTS = [{"type": "text", "text": "hi"}, {"type": "text", "text": " there"}]


def test_a_content_of_parts_is_their_text_and_beside_calls_of_tools_none_is_needed():
    ready = tokenizer(CHATML)
    plain = [{"role": "user", "content": "hi there"}, {"role": "assistant", "content": ""}]
    parts = [{"role": "user", "content": PARTS}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    one, other = (next(chat_examples([("a:1", {"messages": talk})], ready)) for talk in (plain, parts))
    assert list(one.tokens) == list(other.tokens)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "null"),
        ([], r"\[\]"),
        ({"a": 1}, r'\{"a": 1\}'),
        (True, "true"),
        (7, "7"),
        ([*PARTS, {"type": "image"}], r"\[.*…"),
    ],
)
def test_a_content_that_is_no_text_is_refused_and_not_learned(content, shown):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    with pytest.raises(DataError, match=rf"^a:1: the content of message 2 is {shown}\. Give a text, or parts"):
        list(chat_examples([("a:1", {"messages": talk})], tokenizer(CHATML)))
