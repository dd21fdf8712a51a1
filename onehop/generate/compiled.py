"""One further token per row as one graph made by torch.compile, for answers that are long enough to wait for it.

A token of a small model costs more in calls than in arithmetic. The graph has none of them, and its weights are frozen
into it, laid out for the processor. It reads a fixed cache, all of whose slots it sees at each step, so that shapes do
not depend on how much is filled: one graph serves every step.
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


class OneToken:
    """`model` for one token more, compiled for a number of rows and slots when they first come.

    What cannot be compiled is said once, and from then on computed as it is written. `say` shows that, and what takes
    long; None: the former is a warning.
    """

    def __init__(self, model: Transformer, *, kernel: str = "auto", say: Say | None = None, backend: str = "inductor"):
        self.model, self.kernel, self.say, self.backend = model, kernel, say, backend
        self.options: dict[str, Any] | None = {"guard_filter_fn": unguarded} if backend == "inductor" else None
        self.works = True
        self._renew()
        weight = model.embed.tokens.weight
        why = no_compiler(weight.device)
        if why is None and weight.is_cpu and weight.dtype == torch.float32 and made_by_amd():
            why = "a graph multiplies float32 by MKL, on AMD's processors slower than it goes without. Take bfloat16"
        if model.encoder is not None or model.config.both_ways:
            why = "only decoder-only models are, one token after the other"
        if why is not None:
            self._give_up(why)

    def ready(self) -> bool:
        """Whether it works. Weights that have changed since they were frozen are frozen anew.

        Asked once an answer: what a graph would have to look at for each token, it does not look at.
        """
        if self.works and self._state != _state(self.model):
            self._renew()
        return self.works

    def __call__(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) behind tokens (B, 1), which the cache, a fixed one, has then."""
        cache.make_room(1)
        places = Places(cache.lengths.unsqueeze(1).clone())  # no `first`, a number: each would have a graph of its own
        self.model.embed.check_length(places)
        cache.start(places)
        asked = (self.model, tokens, places.at, cache, self.kernel)
        if self.works:
            shape = cache.batch, cache.books[0].slots
            try:
                return self._graphs[shape](*asked) if shape in self._graphs else self._make(shape, *asked)
            except failures() as error:
                self._give_up(in_short(error))
        return next_logits(*asked)

    def _make(self, shape: tuple[int, int], *asked: object) -> Tensor:
        """The first token of a shape."""
        if self.say is not None:
            self.say("compiling: the next token takes up to a minute")
        began = time.perf_counter()
        graph: Callable[..., Tensor] = torch.compile(
            apart(next_logits), dynamic=False, fullgraph=True, backend=self.backend, options=self.options
        )
        with torch._inductor.config.patch(freezing=True):
            logits = graph(*asked)
        self._graphs[shape] = graph
        if self.say is not None:
            self.say(f"compiled in {time.perf_counter() - began:.0f} s")
        return logits

    def _renew(self) -> None:
        self._graphs: dict[tuple[int, int], Callable[..., Tensor]] = {}
        self._state = _state(self.model)

    def _give_up(self, why: str) -> None:
        self.works = False
        if self.say is None:
            warnings.warn(f"not compiled: {why}", stacklevel=2)
        else:
            self.say(f"not compiled: {why}")


def unguarded(guards: Sequence[Any]) -> list[bool]:
    """Which of the facts that a graph rests on it asks for at each call: none, as `OneToken.ready` knows them."""
    return [False for _ in guards]


def next_logits(model: Transformer, tokens: Tensor, at: Tensor, cache: Cache, kernel: str) -> Tensor:
    """The model from tokens (B, 1) at positions (B, 1), for which the cache has slots, to logits (B, V)."""
    cache.look()
    places = Places(at)
    x = model.embed(tokens, places)  # (B, 1, C)
    hidden, _ = model.run(x, Step(places, kernel=kernel), cache)
    return model.head(hidden[:, -1])


def _state(model: Transformer) -> list[tuple[int, ...]]:
    """What tells whether weights, and who listens at modules, are still those that they were."""
    tensors = [*model.parameters(), *model.buffers()]
    hooks = [(id(m), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [*hooks, *((id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)]
