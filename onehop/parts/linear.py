"""Linear maps, and several of them side by side.

For inference on a CPU `pack` lays the weights out the way oneDNN wants them, which is up to three times as fast as
`F.linear` for one token, and maps that read the same input become one product. `F.linear` is the plain twin, and a test
holds them together. A prepared copy knows the state of the weights that it was made of: once they have changed, it is
no longer used.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Packed:
    """Weights (d_out, d_in), stacked, in oneDNN's layout, and the state in which they were copied."""

    def __init__(self, layout: Tensor, bias: Tensor | None, sources: Sequence[Tensor]):
        self.layout, self.bias = layout, bias
        self._state = [_state(source) for source in sources]

    @classmethod
    def of(cls, *maps: nn.Module) -> "Packed | None":
        """The maps' weights and biases prepared, or None where oneDNN cannot serve them."""
        weights, biases = _sources(maps, "weight"), _sources(maps, "bias")
        if not all(map(_servable, weights)):
            return None
        with torch.no_grad():
            layout = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), None)
            bias = torch.cat(biases) if biases else None
        return cls(layout, bias, weights + biases)

    def fits(self, *maps: nn.Module) -> bool:
        """Whether the maps' weights and biases are still those that were copied."""
        return self._state == [_state(source) for source in _sources(maps, "weight") + _sources(maps, "bias")]

    def __call__(self, x: Tensor) -> Tensor:
        """(…, d_in) -> (…, d_out)"""
        return torch.ops.mkldnn._linear_pointwise(x, self.layout, self.bias, "none", [], "")

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied model has weights of its own, for which nothing is prepared."""
        return


class Linear(nn.Linear):
    """y = x · Wᵀ + b: (…, d_in) -> (…, d_out). `weight` is (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self._packed: Packed | None = None

    def pack(self) -> None:
        """Prepare for inference: keep a copy of the weight in oneDNN's layout (CPU only; elsewhere nothing changes)."""
        self._packed = _renewed(self._packed, self)

    def unpack(self) -> None:
        """Forget the prepared copy."""
        self._packed = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None and _usable(self._packed, self):
            return self._packed(x)
        return F.linear(x, self.weight, self.bias)


class Tied(nn.Module):
    """A linear map whose weight (d_out, d_in) is another module's, here the token embedding's; it owns only a bias."""

    def __init__(self, owner: nn.Embedding, bias: bool = False):
        super().__init__()
        self._owner = (owner,)  # in a tuple: not registered, so the weight is listed and saved once
        self.bias = nn.Parameter(torch.zeros(owner.num_embeddings)) if bias else None
        self._packed: Packed | None = None

    @property
    def weight(self) -> Tensor:
        return self._owner[0].weight

    def pack(self) -> None:
        """Prepare for inference, as Linear.pack."""
        self._packed = _renewed(self._packed, self)

    def unpack(self) -> None:
        """Forget the prepared copy."""
        self._packed = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None and _usable(self._packed, self):
            return self._packed(x)
        return F.linear(x, self.weight, self.bias)


class SideBySide:
    """Several linear maps of one input, read as (w1(x), w2(x), …); one product over their stacked rows once packed."""

    def __init__(self, *maps: Linear):
        self.maps = maps
        self.widths = [m.out_features for m in maps]
        self._packed: Packed | None = None

    def pack(self) -> None:
        """Prepare for inference: one packed weight for all maps."""
        self._packed = _renewed(self._packed, *self.maps)

    def unpack(self) -> None:
        """Forget the prepared copy."""
        self._packed = None

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """(…, d_in) -> one (…, d_out) per map."""
        if self._packed is not None and _usable(self._packed, *self.maps):
            return self._packed(x).split(self.widths, dim=-1)
        return [m(x) for m in self.maps]


def pack(model: nn.Module) -> None:
    """Prepare every linear map below `model` for inference; what is prepared already and unchanged stays as it is."""
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


def _renewed(packed: Packed | None, *maps: nn.Module) -> Packed | None:
    return packed if packed is not None and packed.fits(*maps) else Packed.of(*maps)


def _usable(packed: Packed, *maps: nn.Module) -> bool:
    """A prepared copy carries no gradient, and serves only the weights that it was made of."""
    return not torch.is_grad_enabled() and packed.fits(*maps)


def _sources(maps: Sequence[nn.Module], name: str) -> list[Tensor]:
    """The maps' weights or biases; read from the registry, because an attribute of a module costs ten times as much."""
    found = []
    for m in maps:
        tensor = m.weight if name == "weight" and isinstance(m, Tied) else m._parameters.get(name)
        if tensor is not None:
            found.append(tensor)
    return found


def _state(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Changes with every optimizer step, load, move or conversion."""
    return tensor._version, tensor.data_ptr(), tensor.dtype


def _servable(weight: Tensor) -> bool:
    """Whether oneDNN can serve this weight. (A tensor made in inference mode does not count its changes.)"""
    if weight.device.type != "cpu" or weight.is_inference() or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
