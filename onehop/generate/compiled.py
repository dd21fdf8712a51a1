"""One further token per row as one graph made by torch.compile, for answers that are long enough to wait for it.

A token of a small model costs more in calls than in arithmetic. The graph has none of them, and its weights are frozen
into it, laid out for the processor. It reads a fixed cache, all of whose slots it sees at each step, so that shapes do
not depend on how much is filled: one graph serves every step until the slots are taken.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onehop.model.compiler import apart, failures, in_short, no_compiler
from onehop.model.transformer import Transformer
from onehop.parts.cache import Cache
from onehop.parts.places import Places
from onehop.parts.product import made_by_amd
from onehop.parts.step import Step

Say = Callable[[str], None]
Shape = tuple[int, int, torch.dtype]  # rows, slots, and of what

MOST = 4  # graphs of one model: each holds a copy of the weights, which the compiler does not give back
SLOTS, TIMES = 512, 4  # of the smallest cache, and as many times more each time it is full


class OneToken:
    """`model` for one token more, compiled for a number of rows and slots when they first come.

    What cannot be compiled is said once, and from then on computed as it is written; so is a further shape when there
    are `MOST` graphs. `say` shows that, and what takes long; None: the former is a warning.
    """

    def __init__(self, model: Transformer, *, kernel: str = "auto", say: Say | None = None, backend: str = "inductor"):
        self.model, self.kernel, self.say, self.backend = model, kernel, say, backend
        self.works, self._told = True, False
        self._graphs: dict[Shape, Callable[..., Tensor]] = {}
        self._frozen = _state(model)
        self._made = 0
        why = self._why_not()
        if why is not None:
            self._give_up(why)

    def ready(self, rows: int = 1, tokens: int = 1) -> bool:
        """Whether to ask it for the tokens of an answer of so many rows, where so many tokens need slots at first.

        What a graph would have to look at for each token is looked at here, once. Weights that have changed since are
        frozen anew. Who listens at modules, or has autocast on, gets the model as it is written.
        """
        weight = self.model.embed.tokens.weight
        if not self.works or torch.is_autocast_enabled(weight.device.type) or _listened(self.model):
            return False
        now = _state(self.model)
        if len(now) != len(self._frozen) or any(a != b or t is not u for (t, *a), (u, *b) in zip(now, self._frozen)):
            self._graphs, self._frozen = {}, now
        return self._has((rows, slots(tokens), weight.dtype))

    def serves(self, cache: Cache) -> bool:
        """Whether the next token in a fixed cache has a graph, or may have one made. That it has none is said once."""
        size = cache.books[0].slots * (TIMES if cache.short(1) else 1)
        return self.works and self._has((cache.batch, size, cache.layers[0].dtype))

    def __call__(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) behind tokens (B, 1), which the cache, a fixed one, has then."""
        cache.make_room(1, times=TIMES)
        places = Places(cache.lengths.unsqueeze(1).clone())  # no `first`, a number: each would have a graph of its own
        self.model.embed.check_length(places)
        cache.start(places)
        asked = (self.model, tokens, places.at, cache)
        shape = cache.batch, cache.books[0].slots, cache.layers[0].dtype
        if self.works:
            try:
                graph = self._graphs.get(shape)
                return self._make(shape, *asked) if graph is None else graph(*asked, kernel=self.kernel)
            except failures() as error:
                self._give_up(in_short(error))
        return next_logits(*asked, kernel=self.kernel)

    def _has(self, shape: Shape) -> bool:
        """Whether there is a graph for the shape, or may be one more."""
        if shape in self._graphs or self._made < MOST:
            return True
        if not self._told:
            rows, size, _ = shape
            self._tell(f"there are {MOST} graphs, and no more are made: none for {rows} rows of {size} slots")
        self._told = True
        return False

    def _make(self, shape: Shape, *asked: object) -> Tensor:
        """The first token of a shape."""
        if self.say is not None:
            self.say("compiling: the next token takes up to a minute")
        began = time.perf_counter()
        options: dict[str, Any] | None = {"guard_filter_fn": unguarded} if self.backend == "inductor" else None
        graph: Callable[..., Tensor] = torch.compile(
            apart(next_logits), dynamic=False, fullgraph=True, backend=self.backend, options=options
        )
        with torch._inductor.config.patch(freezing=True):
            logits = graph(*asked, kernel=self.kernel)
        self._graphs[shape] = graph
        self._made += 1
        if self.say is not None:
            self.say(f"compiled in {time.perf_counter() - began:.0f} s")
        return logits

    def _why_not(self) -> str | None:
        """Why the model is not compiled, if it is not."""
        weight = self.model.embed.tokens.weight
        if self.model.encoder is not None or self.model.config.both_ways:
            return "only decoder-only models are, one token after the other"
        if any(t.is_inference() for t, *_ in self._frozen):
            return "its weights were made in inference mode, which does not count their changes"
        if weight.is_cpu and weight.dtype == torch.float32 and made_by_amd():
            return "a graph multiplies float32 by MKL, on AMD's processors slower than it goes without. Take bfloat16"
        return no_compiler(weight.device)

    def _give_up(self, why: str) -> None:
        self.works = False
        self._tell(why)

    def _tell(self, why: str) -> None:
        if self.say is None:
            warnings.warn(f"not compiled: {why}", stacklevel=3)
        else:
            self.say(f"not compiled: {why}")


def slots(tokens: int) -> int:
    """Slots of a cache for so many tokens, of few sizes, as each is a graph."""
    size = SLOTS
    while size < tokens:
        size *= TIMES
    return size


def unguarded(guards: Sequence[Any]) -> list[bool]:
    """Which of the facts that a graph rests on it asks for at each call: none, as `OneToken.ready` knows them."""
    return [False for _ in guards]


def next_logits(model: Transformer, tokens: Tensor, at: Tensor, cache: Cache, *, kernel: str) -> Tensor:
    """The model from tokens (B, 1) at positions (B, 1), for which the cache has slots, to logits (B, V)."""
    cache.look()
    places = Places(at)
    x = model.embed(tokens, places)  # (B, 1, C)
    hidden, _ = model.run(x, Step(places, kernel=kernel), cache)
    return model.head(hidden[:, -1])


def _state(model: Transformer) -> list[tuple[Any, ...]]:
    """The weights, and what tells whether they are still what they were."""
    tensors = [*model.parameters(), *model.buffers()]
    return [(t, t.data_ptr(), 0 if t.is_inference() else t._version, t.dtype, t.device) for t in tensors]


def _listened(model: Transformer) -> bool:
    """Whether anybody has put a hook on a module, or another forward in its place."""
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())
