"""The loss of a batch: how surprised the model is by each next token."""

from dataclasses import dataclass

from torch import Tensor

from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.parts.dense import GatedFFN, PlainFFN
from onehop.parts.dropout import DropKey
from onehop.training.surprise import surprise


@dataclass(frozen=True, eq=False)
class Loss:
    """`surprise`: the sum of -log p over the targets (nats), and `z` of their squared log-sum-exps, where asked for.

    Both are still to be divided by the number of targets; `router` is added.
    """

    surprise: Tensor
    z: Tensor | None
    router: Tensor | None
    loads: tuple[Tensor | None, ...]  # (E,) tokens per expert, for each layer, an encoder's last
    entropy: Tensor | None  # mean over tokens and layers of the entropy of the routers' scores, nats


def batch_loss(
    model: Transformer,
    batch: Batch,
    *,
    drop: DropKey | None = None,
    kernel: str = "auto",
    chunk: int | None = None,
    z: bool = False,
) -> Loss:
    """The summed cross-entropy of a batch (B, T), and the router losses, averaged over the layers that have experts.

    `chunk` and `z` as in `surprise`.
    """
    states = model.states(
        batch.tokens if batch.source is None else batch.source,
        target=None if batch.source is None else batch.tokens,
        source_at=batch.source_at,
        at=places(model, batch),
        doc=batch.doc if batch.packed else None,
        drop=drop,
        kernel=kernel,
    )
    found = surprise(model.head, states.hidden.flatten(0, 1), batch.targets.flatten(), chunk=chunk, z=z)
    routing = (*states.routing, *states.encoder_routing)
    routed = [r for r in routing if r is not None]
    router = entropy = None
    for r in routed:
        term, spread = r.weighted_loss / len(routed), r.entropy.detach() / len(routed)
        router = term if router is None else router + term
        entropy = spread if entropy is None else entropy + spread
    loads = tuple(None if r is None else r.load for r in routing)
    return Loss(found.nats, found.z, router, loads, entropy)


def places(model: Transformer, batch: Batch) -> Tensor | None:
    """Positions (B, T), or None where each row is one text from its beginning: the plain causal triangle is quicker.

    Padding then stands behind its text, where no token looks unless it reads both ways, and without targets: it matters
    only to what counts tokens (experts, angles that depend on a text's length).
    """
    if batch.packed or not batch.padded:
        return batch.at if batch.packed else None
    counts = model.config.both_ways or any(not isinstance(layer.ffn, (PlainFFN, GatedFFN)) for layer in model.layers)
    return batch.at if counts or model.by_length else None
