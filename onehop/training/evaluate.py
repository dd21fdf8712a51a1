"""How well a model predicts text it has not learned from."""

from collections.abc import Iterable

import torch

from onehop.data.loader import Batch
from onehop.model.transformer import Transformer
from onehop.training.loss import batch_loss


@torch.no_grad()
def validation_loss(
    model: Transformer, batches: Iterable[Batch], *, precision: torch.dtype = torch.float32, kernel: str = "auto"
) -> float:
    """Mean surprise per target over all batches, in nats; every target weighs the same."""
    was_training = model.training
    model.eval()
    surprise, targets = 0.0, 0
    for batch in batches:
        with torch.autocast(batch.tokens.device.type, dtype=precision, enabled=precision != torch.float32):
            surprise += float(batch_loss(model, batch, kernel=kernel).surprise)
        targets += batch.n_targets
    model.train(was_training)
    return surprise / max(targets, 1)
