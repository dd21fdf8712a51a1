"""A question is answered by the candidate that the model finds most probable after the prompt."""

import pytest
import torch
from torch import nn

from onehop.data.fables import Question
from onehop.model import build
from onehop.text.bpe import train_characters
from onehop.training.picture import draw_look, look_from
from onehop.training.understanding import Understanding, _common, ask
from tests.small_models import decoder

TOKENIZER = train_characters(["abc it"])


class Table(nn.Module):
    """Log-probabilities of the next character that depend on the last one only."""

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, tokens, at):
        return self.scores[tokens]


def test_the_likelier_candidate_wins_by_the_sum_of_its_tokens():
    """After a: b with 0.6, c with 0.4; after b: c with 0.1; after c: b with 0.9. So 'bc' has 0.06 and 'cb' 0.36."""
    n = TOKENIZER.vocab_size
    a, b, c = (TOKENIZER.encode(x)[0] for x in "abc")
    chances = torch.full((n, n), 1e-9)
    chances[a, b], chances[a, c], chances[b, c], chances[c, b] = 0.6, 0.4, 0.1, 0.9
    model = Table(chances.log())
    questions = [
        Question("a", "cb", ("bc",)),
        Question("a", "b", ("c",)),
        Question("aa", "c", ("b",)),
        Question("abcba", "bc", ("cb", "cc")),
    ]
    for rows in (1, 3, 64):
        assert ask(model, TOKENIZER, questions, rows=rows) == Understanding(2, 4, (3 / 2 + 1 / 3) / 4)


def test_a_token_over_the_join_belongs_to_the_continuation():
    assert _common([1, 2, 3], [1, 2, 9, 4]) == 2
    assert _common([1, 2], [1, 2, 3]) == 2
    assert _common([1], [5, 6]) == 1  # never nothing: the first token needs one before it
    assert _common([1, 2], [1, 2]) == 1  # never all: something is to be weighed


def test_a_look_starts_at_the_last_occurrence_of_the_word(tmp_path):
    model = build(decoder(vocab_size=TOKENIZER.vocab_size))
    pieces, weights = look_from(model, TOKENIZER, "abcab", word="a")
    assert pieces == ["a", "b", "c", "a"]
    assert weights.shape == (2, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4))  # a softmax in float32
    draw_look(pieces, weights, tmp_path / "it.png", word="a")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_look_from_a_word_that_is_not_there():
    assert look_from(build(decoder(vocab_size=TOKENIZER.vocab_size)), TOKENIZER, "abc", word="it") is None


@pytest.mark.parametrize("n", [0, 3])
def test_accuracy_is_a_share(n):
    assert Understanding(n, 4, 0.5).accuracy == n / 4
    assert Understanding(0, 0, 0.5).accuracy == 0.0
