"""Linear maps, and several of them side by side.

On a CPU the products run in oneDNN, which is up to twice as fast as `F.linear` where that goes through another library;
`pack` lays frozen weights out the way oneDNN wants them. `F.linear` is the plain twin, and a test holds them together.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = x · Wᵀ + b: (…, d_in) -> (…, d_out). `weight` is (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self._packed: Tensor | None = None  # oneDNN's layout of the weight; None: not packed

    def pack(self) -> None:
        """Prepare for inference: keep a copy of the weight in oneDNN's layout (CPU only; elsewhere nothing changes)."""
        self._packed = packed(self.weight)

    def unpack(self) -> None:
        """Forget the prepared copy, for example before the weight changes."""
        self._packed = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None and not torch.is_grad_enabled():
            return packed_product(x, self._packed, self.bias)
        return product(x, self.weight, self.bias)


class Tied(nn.Module):
    """A linear map whose weight (d_out, d_in) is another module's, here the token embedding's; it owns only a bias."""

    def __init__(self, owner: nn.Embedding, bias: bool = False):
        super().__init__()
        self._owner = (owner,)  # in a tuple: not registered, so the weight is listed and saved once
        self.bias = nn.Parameter(torch.zeros(owner.num_embeddings)) if bias else None
        self._packed: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        return self._owner[0].weight

    def pack(self) -> None:
        """Prepare for inference, as Linear.pack."""
        self._packed = packed(self.weight)

    def unpack(self) -> None:
        """Forget the prepared copy."""
        self._packed = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None and not torch.is_grad_enabled():
            return packed_product(x, self._packed, self.bias)
        return product(x, self.weight, self.bias)


class SideBySide:
    """Several linear maps of one input, read as (w1(x), w2(x), …); one product over their stacked rows once packed."""

    def __init__(self, *maps: Linear):
        self.maps = maps
        self.widths = [m.out_features for m in maps]
        self._packed: Tensor | None = None
        self._bias: Tensor | None = None

    def pack(self) -> None:
        """Prepare for inference: one packed weight for all maps."""
        self._packed = packed(torch.cat([m.weight for m in self.maps]))
        if self._packed is not None and self.maps[0].bias is not None:
            self._bias = torch.cat([m.bias for m in self.maps]).detach()

    def unpack(self) -> None:
        """Forget the prepared copy."""
        self._packed = self._bias = None

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """(…, d_in) -> one (…, d_out) per map."""
        if self._packed is not None and not torch.is_grad_enabled():
            return packed_product(x, self._packed, self._bias).split(self.widths, dim=-1)
        return [m(x) for m in self.maps]


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias by the quickest exact way for this device and dtype."""
    return F.linear(x, weight, bias)


def packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where oneDNN cannot serve it (another device or dtype)."""
    servable = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    if not servable or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().to_mkldnn(), None)


def packed_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias with a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def pack(model: nn.Module) -> None:
    """Prepare every linear map below `model` for inference. Its weights must not change afterwards (or `unpack` first)."""
    _each(model, "pack")


def unpack(model: nn.Module) -> None:
    """Forget all prepared copies below `model`."""
    _each(model, "unpack")


def _each(model: nn.Module, what: str) -> None:
    together: set[int] = set()
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, SideBySide):
                getattr(value, what)()
                together.update(id(m) for m in value.maps)
    for module in model.modules():
        if isinstance(module, (Linear, Tied)) and id(module) not in together:
            getattr(module, what)()

