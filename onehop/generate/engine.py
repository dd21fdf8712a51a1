"""The model as a machine that reads prompts and then takes one token per row and step, with its past in a cache.

Rows of unequal length are padded on the left; padding has position -1, so it is seen by nobody and positions count from
each row's own first token. Only the last position's logits are computed, and long prompts are read in chunks, except
where rotary angles depend on the text's length: a prompt's keys are turned by the length of the whole prompt.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from onehop.generate.compiled import OneToken, slots
from onehop.model.transformer import States, Transformer
from onehop.parts.attention import Memory
from onehop.parts.cache import Cache

FIRST_GUESS = 512  # tokens of an answer that a growing cache has room for from the start
CHUNK = 2048  # tokens (rows x columns) that are read at once: enough to fill the cores, little enough to bound memory


class Engine:
    """A model that is ready to generate: `start` reads prompts, `Session.advance` takes the next tokens."""

    def __init__(
        self,
        model: Transformer,
        *,
        kernel: str = "auto",
        cache: str = "auto",
        chunk: int = CHUNK,
        one_token: OneToken | None = None,
    ):
        """cache: growing, fixed, ring, or auto (ring where windows are shorter than the text, else growing).

        one_token: takes each further token through a compiled graph, from a fixed cache.
        """
        self.model, self.kernel, self.cache = model, kernel, cache
        self.one_token = one_token
        self.chunk = None if model.by_length else chunk

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.embed.tokens.weight.device

    def start(self, prompts: Sequence[Sequence[int]], *, room: int, start_id: int | None = None) -> "Session":
        """Read the prompts (at least one token each); each row may then take `room` tokens.

        Encoder-decoder: the prompts are sources, and start_id begins each answer.
        """
        with torch.inference_mode():
            memory = None
            if self.model.encoder is not None:
                assert start_id is not None, "an encoder-decoder needs a start token"
                source, source_at = left_padded(prompts, self.device)
                memory = self.model.encode(source, at=source_at, kernel=self.kernel)
                prompts = [(start_id,)] * len(prompts)
            one_token, length = self.one_token, max(map(len, prompts))
            if one_token is not None and not one_token.ready(len(prompts), length + 1):
                one_token = None
            cache = self._new_cache(len(prompts), read=length, room=room, one_token=one_token)
            session = Session(self, cache)
            session.read(*left_padded(prompts, self.device), memory)
            if one_token is not None:
                cache.fix()
                session.one_token = one_token
            return session

    def _new_cache(self, rows: int, *, read: int, room: int, one_token: OneToken | None) -> Cache:
        kind = self.cache
        if one_token is not None:  # the prompt is read as ever, and then all slots are
            return self.model.new_cache(rows, kind="growing", capacity=slots(read + 1))
        if kind == "auto":
            windows = [spec.window for spec in self.model.cache_specs()]
            kind = "ring" if any(w is not None and w < read + room for w in windows) else "growing"
        capacity = read + (room if kind == "fixed" else min(room, FIRST_GUESS))
        return self.model.new_cache(rows, kind=kind, capacity=capacity)


class Session:
    """Rows that are being continued. `logits` (B, V) are those of each row's next token."""

    def __init__(self, engine: Engine, cache: Cache):
        self.engine, self.cache = engine, cache
        self.one_token: OneToken | None = None
        self.logits = torch.empty(0)

    def read(self, tokens: Tensor, at: Tensor | None, memory: Memory | None = None) -> None:
        """Take in tokens (B, T) at positions `at` (none: right behind those before), chunk by chunk where it may be."""
        rows, columns = tokens.shape
        step = columns if self.engine.chunk is None else max(1, self.engine.chunk // rows)
        *before, final = (slice(start, start + step) for start in range(0, columns, step))
        for part in before:  # what these come to, beside what the cache keeps, is not needed
            self._states(tokens, at, memory, part)
        hidden = self._states(tokens, at, memory, final).hidden
        self.logits = self.engine.model.head(hidden[:, -1])  # (B, V)

    def _states(self, tokens: Tensor, at: Tensor | None, memory: Memory | None, part: slice) -> States:
        """Some columns read; the cache has them then."""
        return self.engine.model.states(
            tokens[:, part],
            at=None if at is None else at[:, part],
            memory=memory,
            cache=self.cache,
            kernel=self.engine.kernel,
        )

    def advance(self, tokens: Tensor) -> None:
        """Take one further token (B,) in each row."""
        with torch.inference_mode():
            if self.one_token is not None and not self.one_token.serves(self.cache):
                self._leave_graph()
            if self.one_token is not None:
                self.logits = self.one_token(tokens.unsqueeze(1), self.cache)
            else:
                self.read(tokens.unsqueeze(1), None)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only: row b becomes the old row rows[b]. Fewer rows would be a graph of their own."""
        with torch.inference_mode():
            if self.one_token is not None:
                self._leave_graph()
            index = torch.tensor(rows, device=self.logits.device)
            self.cache.reorder(index)
            self.logits = self.logits.index_select(0, index)

    def _leave_graph(self) -> None:
        """Go on with the model as it is written, which reads of the cache only what is filled."""
        self.one_token = None
        self.cache.loosen()


def left_padded(rows: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Rows of ids as tokens (B, T), and their positions (B, T), -1 for padding; no positions where no row is padded."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    if all(len(row) == width for row in rows):
        return tokens, None
    at = torch.tensor([[-1] * (width - len(row)) + list(range(len(row))) for row in rows], device=device)
    return tokens, at
