"""The transformer: embed the tokens, apply the blocks, normalise, project to logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onehop.base.errors import RequestError
from onehop.config.model import HeadConfig, ModelConfig, TransformConfig
from onehop.parts.absolute import LearnedPositions
from onehop.parts.activation import ACTIVATIONS
from onehop.parts.attention import Memory
from onehop.parts.cache import Cache, CacheSpec, LayerCache
from onehop.parts.dropout import DropKey, dropout
from onehop.parts.linear import Linear, Tied
from onehop.parts.moe import Routing
from onehop.parts.places import Places
from onehop.parts.step import Listener, Step

Passed = tuple[Tensor, Routing | None]


@dataclass(frozen=True, eq=False)
class States:
    """What a forward pass returns: hidden states (B, T, C) after the final norm, and each layer's routing or None.

    `encoder_routing` is that of the encoder's layers, where an encoder was run in this pass.
    """

    hidden: Tensor
    routing: Sequence[Routing | None]
    encoder_routing: Sequence[Routing | None] = ()


class Embedding(nn.Module):
    """Token ids (B, T) -> (B, T, C): the token's row, scaled, plus absolute position and segment, normalised.

    `widen` takes rows of another width to C. With `shared` the rows are another embedding's (the decoder's, read by an
    encoder).
    """

    def __init__(
        self,
        rows: nn.Embedding,
        *,
        positions: nn.Module | None,
        segments: nn.Embedding | None,
        norm: nn.Module,
        scale: float,
        widen: nn.Module,
        shared: bool = False,
    ):
        super().__init__()
        self._rows = (rows,)  # in a tuple: registered by its owner only, so that it is listed and saved once
        if not shared:
            self.tokens = rows
        self.widen, self.positions, self.segments = widen, positions, segments
        self.norm, self.scale = norm, scale

    def forward(self, tokens: Tensor, places: Places, segments: Tensor | None = None) -> Tensor:
        """`segments` (B, T) int64: the segment of each token (none: 0)."""
        try:
            x = self._rows[0](tokens)  # (B, T, C)
        except IndexError as error:  # a GPU says so elsewhere: reading the ids there would wait for it
            n = self._rows[0].num_embeddings
            raise RequestError(f"tokens hold an id outside of this model's, which are 0 to {n - 1}") from error
        x = self.widen(x if self.scale == 1.0 else x * self.scale)
        x = x if self.positions is None else x + self.positions(places.at, dtype=x.dtype)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        return self.norm(x)

    def check_segments(self, segments: Tensor) -> None:
        """Whether there is a row for each. Raises RequestError."""
        if self.segments is None:
            raise RequestError("this model has no segments: that takes embed.segments. Leave them out.")
        n = self.segments.num_embeddings
        if segments.numel() and not 0 <= int(segments.min()) <= int(segments.max()) < n:
            raise RequestError(
                f"segments reach from {int(segments.min())} to {int(segments.max())}; this model's are 0 to {n - 1}"
            )

    def check_length(self, places: Places) -> None:
        """Learned positions end somewhere; every other scheme can go on. Raises RequestError."""
        if not isinstance(self.positions, LearnedPositions) or not places.at.numel():
            return
        last = places.first + places.n if places.first is not None else int(places.at.max()) + 1
        room = self.positions.max_len
        if last > room:
            raise RequestError(f"the text has {last} tokens; this model has positions for {room}. Shorten it.")


class Transform(nn.Module):
    """One more hidden layer before the logits, norm(act(W · x + b)): (…, C) -> (…, C).

    Devlin et al. 2018, arXiv:1810.04805, in its release.
    """

    def __init__(self, d_model: int, cfg: TransformConfig, *, norm: nn.Module):
        super().__init__()
        self.map, self.norm = Linear(d_model, d_model, bias=True), norm
        self.act = ACTIVATIONS.get(cfg.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.map(x)))


class Head(nn.Module):
    """Hidden states (…, C) -> logits (…, V): a `transform`, where there is one; `narrow` to a token's row's width."""

    def __init__(self, projection: Linear | Tied, cfg: HeadConfig, *, transform: nn.Module, narrow: nn.Module):
        super().__init__()
        self.transform, self.narrow, self.projection = transform, narrow, projection
        self.scale, self.softcap = cfg.scale, cfg.softcap

    def forward(self, hidden: Tensor) -> Tensor:
        return self.finished(self.projection(self.narrow(self.transform(hidden))))  # (…, V)

    def finished(self, logits: Tensor) -> Tensor:
        """What becomes of the projection's numbers."""
        logits = logits if self.scale == 1.0 else logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def through(
    layer: nn.Module, x: Tensor, step: Step, *, cache: LayerCache | None = None, memory: Memory | None = None
) -> Passed:
    """One block: (B, T, C) -> (B, T, C) and its routing."""
    passed: Passed = layer(x, step, cache, memory)
    return passed


class Stack(nn.Module):
    """Blocks in a row and the norm after the last. It owns the position schemes that its layers share.

    `through` is how a block is gone through: as above, or keeping less for backward (`recompute.py`).
    """

    def __init__(self, layers: Sequence[nn.Module], *, final_norm: nn.Module, schemes: Sequence[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.schemes = nn.ModuleList(schemes)
        self.final_norm = final_norm
        self.through = through

    @property
    def by_length(self) -> bool:
        """Whether any layer's angles depend on the length of the text."""
        return any(scheme.by_length for scheme in self.schemes)

    def run(
        self, x: Tensor, step: Step, cache: Cache | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, list[Routing | None]]:
        """(B, T, C) -> hidden states (B, T, C) and the routing of each layer."""
        routing: list[Routing | None] = []
        for i, layer in enumerate(self.layers):
            own = None if cache is None else cache.layers[i]
            x, routed = self.through(layer, x, step, cache=own, memory=memory)  # (B, T, C)
            routing.append(routed)
        return self.final_norm(x), routing


class Encoder(Stack):
    """The encoder of an encoder-decoder: token ids (B, S) -> Memory."""

    def __init__(self, layers: Sequence[nn.Module], *, embed: Embedding, dropout: float, **stack: Any):
        super().__init__(layers, **stack)
        self.embed, self.dropout = embed, dropout


class Transformer(Stack):
    """A decoder-only model or, with `encoder`, an encoder-decoder. Built by `onehop.build`.

    `model(tokens)` (B, T) int64 -> logits (B, T, V); encoder-decoder: `model(source, target)`.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[nn.Module],
        *,
        embed: Embedding,
        head: Head,
        encoder: Encoder | None = None,
        **stack: Any,
    ):
        super().__init__(layers, **stack)
        self.config = config
        self.embed, self.head, self.encoder = embed, head, encoder

    def forward(self, tokens: Tensor, target: Tensor | None = None, **options: Any) -> Tensor:
        """Logits (B, T, V) at every position, of the next token, or, in a model that reads both ways, of its own.

        `options` as in `states`.
        """
        return self.head(self.states(tokens, target, **options).hidden)

    def states(
        self,
        tokens: Tensor,
        target: Tensor | None = None,
        *,
        at: Tensor | None = None,
        doc: Tensor | None = None,
        segments: Tensor | None = None,
        source_at: Tensor | None = None,
        memory: Memory | None = None,
        prefix: Tensor | None = None,
        cache: Cache | None = None,
        drop: DropKey | None = None,
        kernel: str = "auto",
        listener: Listener | None = None,
    ) -> States:
        """Hidden states of all new tokens, and what the router losses need.

        tokens (B, T) int64. `at` (B, T): their positions, -1 for padding (left out: they follow the cache or start at
        0); `doc` (B, T): their documents, which do not see each other; `segments` (B, T): which text of several each
        belongs to (left out: 0); `prefix` (B,): lengths of prefixes read both ways. Encoder-decoder: tokens is the
        source (B, S), `target` (B, T) what the decoder reads; `at` and `doc` belong to the target, `source_at` (B, S)
        to the source. Or give `memory` from `encode` and the target alone. `drop` switches dropout on. With a `cache`
        the tokens are added to it.
        """
        if target is not None:
            memory = self.encode(tokens, at=source_at, drop=drop, kernel=kernel, listener=listener)
            tokens = target
        elif source_at is not None:
            raise RequestError("source_at says where a source stands, and there is none: model(source, target)")
        self._check_options(memory, prefix, cache)
        places = self._places(self.embed, tokens, at=at, doc=doc, segments=segments, cache=cache)
        if cache is not None:
            cache.start(places)
        step = Step(places, prefix=prefix, drop=drop, kernel=kernel, listener=listener)
        x = self.embed(tokens, places, segments)  # (B, T, C)
        x = dropout(x, self.config.dropout.embed, step.dropping(EMBED_SITE))
        hidden, routing = self.run(x, step, cache, memory)
        return States(hidden, routing, () if memory is None else memory.routing)

    def encode(
        self,
        source: Tensor,
        *,
        at: Tensor | None = None,
        drop: DropKey | None = None,
        kernel: str = "auto",
        listener: Listener | None = None,
    ) -> Memory:
        """What the decoder reads of the source (B, S) int64; `at` (B, S) as in `states`."""
        if self.encoder is None:
            raise RequestError("this model has no encoder: give tokens only, model(tokens)")
        places = self._places(self.encoder.embed, source, at=at)
        step = Step(places, drop=drop, kernel=kernel, listener=listener)
        x = dropout(self.encoder.embed(source, places), self.encoder.dropout, step.dropping(ENCODER_SITE))  # (B, S, C)
        hidden, routing = self.encoder.run(x, step)
        return Memory(hidden, places, routing)

    def _check_options(self, memory: Memory | None, prefix: Tensor | None, cache: Cache | None) -> None:
        """Whether this model can make use of what it is given."""
        read = cache is not None and any(layer.cross is not None for layer in cache.layers)
        if self.encoder is not None and memory is None and not read:
            raise RequestError("this model has an encoder: give a source and a target, model(source, target)")
        if self.encoder is None and memory is not None:
            raise RequestError("this model has no encoder: give tokens only, model(tokens)")
        if prefix is not None and not any(block.attention.sees == "prefix" for block in self.config.blocks):
            raise RequestError("no layer of this model reads a prefix both ways: that takes attention.sees=prefix")
        if cache is not None and self.config.both_ways:
            raise RequestError("this model reads both ways, so its past depends on what comes: leave the cache out")

    def _places(
        self,
        embed: Embedding,
        tokens: Tensor,
        *,
        at: Tensor | None = None,
        doc: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Places:
        """Where the new tokens stand."""
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
            found = str(tokens.dtype) if isinstance(tokens, Tensor) else f"a {type(tokens).__name__}"
            raise RequestError(f"tokens must be a tensor of int64, not {found}: torch.tensor([[1, 2, 3]]) is one")
        if tokens.dim() != 2:
            raise RequestError(f"tokens must be (B, T), two dims; these have {tokens.dim()}: {tuple(tokens.shape)}")
        for name, given in (("at", at), ("doc", doc), ("segments", segments)):
            if given is None:
                continue
            if not isinstance(given, Tensor):
                raise RequestError(f"{name} must be a tensor of the tokens' shape, not a {type(given).__name__}")
            if given.shape != tokens.shape:
                raise RequestError(f"{name} {tuple(given.shape)} must have the tokens' shape {tuple(tokens.shape)}")
        if segments is not None:
            embed.check_segments(segments)
        if at is not None:
            places = Places(at, doc)
        elif cache is not None:
            places = cache.next_places(tokens.size(1))
            places = Places(places.at, doc, places.first if doc is None else None)
        else:
            run = Places.run(0, tokens.size(1), tokens.device)
            places = run if doc is None else Places(run.at, doc)
        embed.check_length(places)
        return places

    def new_cache(self, batch: int, *, kind: str = "growing", capacity: int | None = None, margin: int = 0) -> Cache:
        """An empty cache for `batch` rows, of the model's dtype and device (kinds: see Cache)."""
        weight = self.embed.tokens.weight
        specs = self.cache_specs()
        options: dict[str, Any] = {"kind": kind, "capacity": capacity, "margin": margin}
        return Cache(specs, batch=batch, dtype=weight.dtype, device=weight.device, **options)

    def cache_specs(self) -> list[CacheSpec]:
        """What each layer keeps per token."""
        return [layer.attention.cache_spec() for layer in self.layers]  # type: ignore[union-attr, operator]


EMBED_SITE, ENCODER_SITE = 1, 2
