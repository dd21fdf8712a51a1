"""The loss of a batch: how surprised the model is by each next token."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.parts.dropout import DropKey

IGNORE = -100  # a target that does not count: padding, or the first token of another document


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
    surprise = F.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    routed = [r for r in states.routing if r is not None]
    router = None
    for r in routed:
        term = r.weighted_loss / len(routed)
        router = term if router is None else router + term
    return Loss(surprise, router, tuple(None if r is None else r.load for r in states.routing))
