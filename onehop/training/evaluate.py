"""How well a model predicts text it has not learned from."""

from collections.abc import Callable, Iterable

import torch

from onehop.base.units import human_count
from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.training.loss import batch_loss
from onehop.training.setup import computing


@torch.no_grad()
def validation_loss(
    model: Transformer,
    batches: Iterable[Batch],
    *,
    precision: torch.dtype = torch.float32,
    kernel: str = "auto",
    chunk: int | None = None,
    notify: Callable[[str], None] | None = None,
) -> float:
    """Mean surprise per target over all batches, in nats; every target weighs the same. `chunk` as in `surprise`."""
    was_training = model.training
    model.eval()
    surprise, targets = 0.0, 0
    for batch in batches:
        with computing(batch.tokens.device, precision):
            surprise += float(batch_loss(model, batch, kernel=kernel, chunk=chunk).surprise)
        targets += batch.n_targets
        if notify is not None:
            notify(f"evaluating: {human_count(targets)} tokens predicted")
    model.train(was_training)
    return surprise / max(targets, 1)
