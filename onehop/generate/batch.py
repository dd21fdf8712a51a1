"""Several requests side by side: each is answered as if it were alone, and leaves when it is done."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from onehop.base.errors import RequestError
from onehop.generate.engine import Engine
from onehop.generate.request import Limits, Request
from onehop.generate.sample import Sampler, TokenLogprob, raw_logprobs
from onehop.text.stream import StopStrings, TextStream
from onehop.text.tokenizer import Tokenizer

ROWS = 32  # requests that run at once
TAIL = 8  # tokens of the prompt that may decide how an answer's first token reads


@dataclass(frozen=True)
class Piece:
    """What one step adds to one answer: the token, and the text that may be shown now (often, but not always, its own).

    finish_reason is set on an answer's last piece: "stop" (an end token or a stop string) or "length".
    """

    request: int  # its place among the requests
    text: str
    token_id: int
    logprob: TokenLogprob | None
    finish_reason: Literal["stop", "length"] | None


def run(
    engine: Engine, requests: Sequence[Request], *, limits: Limits, tokenizer: Tokenizer | None = None, rows: int = ROWS
) -> Iterator[Piece]:
    """Answer all requests; pieces come as they arise, those of one answer in order.

    Every request is checked before any work is done. Without a tokenizer the text stays empty. At most `rows` run at
    once, requests of similar length together.
    """
    ready = [request.for_model(limits).seeded() for request in requests]
    if tokenizer is None and any(request.stop for request in ready):
        raise RequestError("stop strings need a tokenizer, and this model has none. Leave stop out.")
    return _run(engine, ready, limits, tokenizer=tokenizer, rows=rows)


def _run(
    engine: Engine, requests: list[Request], limits: Limits, *, tokenizer: Tokenizer | None, rows: int
) -> Iterator[Piece]:
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt))
    for start in range(0, len(order), rows):
        group = order[start : start + rows]
        answers = [Answer(i, requests[i], limits, tokenizer) for i in group]
        yield from _answer(engine, answers, limits)


def _answer(engine: Engine, answers: list["Answer"], limits: Limits) -> Iterator[Piece]:
    """Prefill, then one step after another, until no row is left."""
    requests = [answer.request for answer in answers]
    session = engine.start(
        [r.prompt for r in requests], room=max(answer.room for answer in answers), start_id=limits.start_id
    )
    sampler = Sampler(requests, limits, device=engine.device)
    while True:
        tokens = sampler(session.logits)
        logprobs = _logprobs(session.logits, tokens, answers, limits.n_ids)
        ids = tokens.tolist()
        for answer, token_id, logprob in zip(answers, ids, logprobs):
            yield answer.push(token_id, logprob)
        left = [b for b, answer in enumerate(answers) if not answer.done]
        if not left:
            return
        if len(left) < len(answers):
            answers = [answers[b] for b in left]
            session.keep(left)
            sampler.keep(left)
            tokens = tokens[left]
        session.advance(tokens)


class Answer:
    """One answer as it grows: its text, and whether it has ended."""

    def __init__(self, index: int, request: Request, limits: Limits, tokenizer: Tokenizer | None):
        self.index, self.request = index, request
        self.eos_ids = frozenset() if request.ignore_eos else limits.eos_ids
        self.last = limits.last
        self.room = request.room(limits)
        self.text = None if tokenizer is None else TextStream(tokenizer)
        if self.text is not None and not limits.has_source:
            for token_id in request.prompt[-TAIL:]:  # an answer is the middle of a text: its first space counts
                self.text.push(token_id)
        self.stops = StopStrings(request.stop) if request.stop else None
        self.length, self.done = 0, False

    def push(self, token_id: int, logprob: TokenLogprob | None) -> Piece:
        """Take the next token and say what it adds."""
        self.length += 1
        ended = token_id in self.eos_ids
        text, stopped = self._shown("" if ended or self.text is None else self.text.push(token_id))
        full = self.length >= self.room
        self.done = ended or stopped or full
        if self.done and not stopped:
            more, stopped = self._shown("" if self.text is None else self.text.close())
            text += more + ("" if self.stops is None or stopped else self.stops.close())
        ended = ended and not (full and token_id == self.last)  # that end was not the model's choice
        reason: Literal["stop", "length"] | None = "stop" if ended or stopped else "length" if full else None
        return Piece(self.index, text, token_id, logprob, reason)

    def _shown(self, text: str) -> tuple[str, bool]:
        """The part of the text that cannot belong to a stop string, and whether one is complete."""
        return (text, False) if self.stops is None else self.stops.push(text)


def _logprobs(logits: Tensor, tokens: Tensor, answers: list[Answer], n_ids: int) -> list[TokenLogprob | None]:
    wanted = [answer.request.logprobs for answer in answers]
    if all(n is None for n in wanted):
        return [None] * len(answers)
    return raw_logprobs(logits[:, :n_ids], tokens, wanted)
