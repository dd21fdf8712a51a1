"""Whether a model understood: of several ways to go on, does it find the right one most probable?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onehop.data.fables import Question
from onehop.data.pairs import Borders
from onehop.generate import Request
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer
from onehop.training.samples import answers
from onehop.training.setup import computing


@dataclass(frozen=True)
class Understanding:
    """Right answers out of `asked`; `chance` is what guessing would give."""

    right: int
    asked: int
    chance: float

    @property
    def accuracy(self) -> float:
        return self.right / max(self.asked, 1)


@torch.no_grad()
def ask(
    model: Transformer,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    rows: int = 16,
    precision: torch.dtype = torch.float32,
    notify: Callable[[str], None] | None = None,
) -> Understanding:
    """Score each question's answer against its rivals by the log-probability of their tokens after the prompt.

    `rows` texts are read at a time, those of similar length together.
    """
    texts = [(q.prompt, candidate) for q in questions for candidate in (q.answer, *q.rivals)]
    encoded = [_encoded(tokenizer, *text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i][0]))
    scores = [0.0] * len(texts)
    was_training = model.training
    model.eval()
    for first in range(0, len(texts), rows):
        some = order[first : first + rows]
        for i, score in zip(some, _scores(model, [encoded[i] for i in some], precision), strict=True):
            scores[i] = score
        if notify is not None:
            notify(f"asking questions: {min(first + rows, len(texts))} of {len(texts)} answers weighed")
    model.train(was_training)
    right, chance = 0, 0.0
    for question in questions:
        n = 1 + len(question.rivals)
        mine, scores = scores[:n], scores[n:]
        right += mine[0] > max(mine[1:])
        chance += 1 / n
    return Understanding(right, len(questions), chance / max(len(questions), 1))


def ask_pairs(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    borders: Borders,
    rows: int = 100,
    notify: Callable[[str], None] | None = None,
) -> Understanding:
    """How many sources an encoder-decoder answers, greedily, with exactly their target; `rows` are asked at a time."""
    right = 0
    for first in range(0, len(pairs), rows):
        some = pairs[first : first + rows]
        requests = [Request(tuple(tokenizer.encode(source)), temperature=0.0) for source, _ in some]
        said = answers(model, tokenizer, requests, borders=borders)
        right += sum(text == target for text, (_, target) in zip(said, some, strict=True))
        if notify is not None:
            notify(f"asking for pairs: {right} of {first + len(some)} answers are right")
    return Understanding(right, len(pairs), chance=0.0)


def _encoded(tokenizer: Tokenizer, prompt: str, continuation: str) -> tuple[list[int], int]:
    """The ids of both together, and where the continuation begins."""
    before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + continuation)
    return whole, _common(before, whole)


def _scores(model: Transformer, texts: Sequence[tuple[list[int], int]], precision: torch.dtype) -> list[float]:
    """Log p(ids from `start` on | those before), for each (ids, start), in nats."""
    width = max(len(ids) for ids, _ in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.int64)  # (B, T)
    at = torch.arange(width).repeat(len(texts), 1)  # (B, T)
    for b, (ids, _) in enumerate(texts):
        tokens[b, : len(ids)] = torch.tensor(ids)
        at[b, len(ids) :] = -1
    device = next(model.parameters()).device
    with computing(device, precision):
        logits: Tensor = model(tokens.to(device), at=at.to(device)).float().cpu()  # (B, T, V)
    surprise = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)  # (B, T - 1)
    return [float(surprise[b, start - 1 : len(ids) - 1].sum()) for b, (ids, start) in enumerate(texts)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning: a token that spans the join belongs to the continuation. At least 1."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return max(1, min(n, len(b) - 1))
