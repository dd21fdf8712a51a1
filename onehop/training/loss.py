"""The loss of a batch: how surprised the model is by each next token."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from onehop.data.loader import Batch
from onehop.data.pack import NO_TARGET
from onehop.model.transformer import Transformer
from onehop.parts.dense import GatedFFN, PlainFFN
from onehop.parts.dropout import DropKey
from onehop.parts.score_plain import wide


@dataclass(frozen=True, eq=False)
class Loss:
    """`surprise`: the sum of -log p over the targets (nats), still to be divided by their number; `router` is added."""

    surprise: Tensor
    router: Tensor | None
    loads: tuple[Tensor | None, ...]  # (E,) tokens per expert, for each layer, an encoder's last


def batch_loss(model: Transformer, batch: Batch, *, drop: DropKey | None = None, kernel: str = "auto") -> Loss:
    """The summed cross-entropy of a batch (B, T), and the router losses, averaged over the layers that have experts."""
    states = model.states(
        batch.tokens if batch.source is None else batch.source,
        target=None if batch.source is None else batch.tokens,
        source_at=batch.source_at,
        at=_places(model, batch),
        doc=batch.doc if batch.packed else None,
        drop=drop,
        kernel=kernel,
    )
    logits = model.head(states.hidden)  # (B, T, V)
    logits = wide(logits.flatten(0, 1))  # (B·T, V), float32 for 16-bit logits
    surprise = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=NO_TARGET, reduction="sum")
    routing = (*states.routing, *states.encoder_routing)
    routed = [r for r in routing if r is not None]
    router = None
    for r in routed:
        term = r.weighted_loss / len(routed)
        router = term if router is None else router + term
    return Loss(surprise, router, tuple(None if r is None else r.load for r in routing))


def _places(model: Transformer, batch: Batch) -> Tensor | None:
    """Positions (B, T), or None where each row is one text from its beginning: the plain causal triangle is quicker.

    Padding then stands behind its text, where no token looks unless it reads both ways, and without targets: it matters
    only to what counts tokens (experts, angles that depend on a text's length).
    """
    counts = model.config.both_ways or any(not isinstance(layer.ffn, (PlainFFN, GatedFFN)) for layer in model.layers)
    return batch.at if batch.packed or (batch.padded and (counts or model.by_length)) else None
