"""Whether a model understood: of several ways to go on, does it find the right one most probable?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onehop.data.fables import Question
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer


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
def ask(model: Transformer, tokenizer: Tokenizer, questions: Sequence[Question], *, batch: int = 64) -> Understanding:
    """Score each question's answer against its rivals by the log-probability of their tokens after the prompt."""
    texts = [(q.prompt, candidate) for q in questions for candidate in (q.answer, *q.rivals)]
    scores: list[float] = []
    was_training = model.training
    model.eval()
    for start in range(0, len(texts), batch):
        scores += _continuations(model, tokenizer, texts[start : start + batch])
    model.train(was_training)
    right, chance = 0, 0.0
    for question in questions:
        n = 1 + len(question.rivals)
        mine, scores = scores[:n], scores[n:]
        right += mine[0] > max(mine[1:])
        chance += 1 / n
    return Understanding(right, len(questions), chance / max(len(questions), 1))


def _continuations(model: Transformer, tokenizer: Tokenizer, texts: Sequence[tuple[str, str]]) -> list[float]:
    """Log p(continuation | prompt) for each pair, in nats."""
    rows, starts = [], []
    for prompt, continuation in texts:
        before, whole = tokenizer.encode(prompt), tokenizer.encode(prompt + continuation)
        starts.append(_common(before, whole))
        rows.append(whole)
    width = max(map(len, rows))
    device = next(model.parameters()).device
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)  # (B, T)
    at = torch.arange(width).repeat(len(rows), 1)  # (B, T)
    for b, row in enumerate(rows):
        tokens[b, : len(row)] = torch.tensor(row)
        at[b, len(row) :] = -1
    logits: Tensor = model(tokens.to(device), at=at.to(device)).float().cpu()  # (B, T, V)
    surprise = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)  # (B, T - 1)
    return [float(surprise[b, starts[b] - 1 : len(row) - 1].sum()) for b, row in enumerate(rows)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning: a token that spans the join belongs to the continuation. At least 1."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return max(1, min(n, len(b) - 1))
