"""Values that are not learned: tensors computed from a config, and what a parameter holds before training."""

import torch
from torch import Tensor, nn


class Constant:
    """A fixed tensor, computed once on the CPU and handed out on any device.

    Not a buffer: `model.to(torch.bfloat16)` would round a buffer, and `model.to_empty()` would forget its values.
    """

    def __init__(self, value: Tensor):
        self._on = {value.device: value}
        self._home = value

    def on(self, device: torch.device) -> Tensor:
        """The tensor on `device`, copied there on first use."""
        if device not in self._on:
            self._on[device] = self._home.to(device)
        return self._on[device]


def fresh_normal(parameter: Tensor, std: float = 0.02) -> None:
    """Fill a parameter with small normal numbers; not on the meta device, where that would load the compiler."""
    if not parameter.is_meta:
        nn.init.normal_(parameter, std=std)
