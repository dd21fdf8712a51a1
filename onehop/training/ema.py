"""A moving average of the weights: what a falling learning rate does in time, done beside the run.

Polyak and Juditsky 1992; as in Morales-Brotons et al. 2024, arXiv:2411.18704, section 2.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PREFIX = "average/"
FOLDER = "ema"  # of the averaged model, in the run's folder


class Average:
    """w̄ ← d · w̄ + (1 - d) · w after each step, for every parameter that learns, in its own dtype.

    d grows to `decay` as (1 + n) / (10 + n) with the number of steps n, so that the first weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self._values = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module, n: int) -> None:
        """Take in the weights after the n-th step (from 1) that moved them."""
        now = dict(model.named_parameters())
        share = 1 - min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(list(self._values.values()), [now[name].detach() for name in self._values], share)

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """A block in which the model has the averaged weights; it gets its own back, bit for bit."""
        own = {name: p.detach().clone() for name, p in model.named_parameters() if name in self._values}
        try:
            _put(model, self._values)
            yield
        finally:
            _put(model, own)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it, and gives back in place."""
        return {PREFIX + name: value for name, value in self._values.items()}


@torch.no_grad()
def _put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, value in values.items():
        parameters[name].copy_(value)
