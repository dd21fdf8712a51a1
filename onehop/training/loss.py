"""The loss of a batch: how surprised the model is by each next token."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from onehop.data.loader import Batch
from onehop.data.pack import NO_TARGET
from onehop.model.transformer import Transformer
from onehop.parts.dropout import DropKey
from onehop.parts.score_plain import wide


@dataclass(frozen=True, eq=False)
class Loss:
    """`surprise`: the sum of -log p over the targets (nats), still to be divided by their number; `router` is added."""

    surprise: Tensor
    router: Tensor | None
    loads: tuple[Tensor | None, ...]  # (E,) tokens per expert, for each layer


def batch_loss(model: Transformer, batch: Batch, *, drop: DropKey | None = None, kernel: str = "auto") -> Loss:
    """The summed cross-entropy of a batch (B, T), and the router losses, averaged over the layers that have experts."""
    at = batch.at if batch.packed or batch.padded else None  # one whole document a row: positions follow by themselves
    states = model.states(batch.tokens, at=at, doc=batch.doc if batch.packed else None, drop=drop, kernel=kernel)
    logits = model.head(states.hidden)  # (B, T, V)
    logits = wide(logits.flatten(0, 1))  # (B·T, V), float32 for 16-bit logits
    surprise = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=NO_TARGET, reduction="sum")
    routed = [r for r in states.routing if r is not None]
    router = None
    for r in routed:
        term = r.weighted_loss / len(routed)
        router = term if router is None else router + term
    return Loss(surprise, router, tuple(None if r is None else r.load for r in states.routing))
