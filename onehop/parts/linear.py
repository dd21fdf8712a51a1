"""Linear maps, and several of them side by side.

For inference on a CPU `pack` lays the weights out the way oneDNN wants them, which is up to three times as fast as
`F.linear` for one token, and maps that read the same input become one product. `F.linear` is the plain twin, and a test
holds them together. A prepared copy knows the state of the weights that it was made of: once they have changed, it is
no longer used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Packed:
    """Weights (d_out, d_in), stacked, in oneDNN's layout, and the state in which they were copied."""

    def __init__(self, layout: Tensor, bias: Tensor | None, places: Sequence["Place"]):
        """places: where the weights and biases that were copied are kept."""
        self.layout, self.bias = layout, bias
        self._states = [
            (table, key, p, p._version, p.data_ptr(), p.dtype) for table, key in places if (p := table[key]) is not None
        ]

    @classmethod
    def of(cls, *maps: "Linear | Tied") -> "Packed | None":
        """The maps' weights and biases prepared, or None where oneDNN cannot serve them."""
        weights: list[Tensor] = [m.weight for m in maps]
        biases: list[Tensor] = [m.bias for m in maps if m.bias is not None]
        if not all(map(_servable, weights)):
            return None
        with torch.no_grad():
            layout = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), None)
            bias = torch.cat(biases) if biases else None
        return cls(layout, bias, [place for m in maps for place in m.places()])

    def usable(self) -> bool:
        """Whether no gradient is wanted, and nothing has changed since: no optimizer step, load, move or conversion."""
        if torch.is_grad_enabled():
            return False
        for table, key, parameter, version, address, dtype in self._states:
            if table[key] is not parameter or parameter._version != version:
                return False
            if parameter.data_ptr() != address or parameter.dtype is not dtype:
                return False
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """(…, d_in) -> (…, d_out)"""
        return torch.ops.mkldnn._linear_pointwise(x, self.layout, self.bias, "none", [], "")

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied model has weights of its own, for which nothing is prepared."""


# A table of parameters and a name in it. (Read there, one costs a tenth of what it costs as a module's attribute.)
Place = tuple[Mapping[str, Tensor | None], str]


class Linear(nn.Linear):
    """y = x · Wᵀ + b: (…, d_in) -> (…, d_out). `weight` is (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self.packed: Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.usable():
            return self.packed(x)
        return F.linear(x, self.weight, self.bias)

    def places(self) -> list[Place]:
        """Where its parameters are kept."""
        return [(self._parameters, key) for key in ("weight", "bias") if self._parameters[key] is not None]


class Tied(nn.Module):
    """A linear map whose weight (d_out, d_in) is another module's, here the token embedding's; it owns only a bias."""

    def __init__(self, owner: nn.Embedding, bias: bool = False):
        super().__init__()
        self._owner = (owner,)  # in a tuple: not registered, so the weight is listed and saved once
        self.bias = nn.Parameter(torch.zeros(owner.num_embeddings)) if bias else None
        self.packed: Packed | None = None

    @property
    def weight(self) -> Tensor:
        return self._owner[0].weight

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.usable():
            return self.packed(x)
        return F.linear(x, self.weight, self.bias)

    def places(self) -> list[Place]:
        """Where its parameters are kept."""
        return [(self._owner[0]._parameters, "weight"), *([] if self.bias is None else [(self._parameters, "bias")])]


class SideBySide:
    """Several linear maps of one input, read as (w1(x), w2(x), …); one product over their stacked rows once packed."""

    def __init__(self, *maps: Linear):
        self.maps = maps
        self.widths = [m.out_features for m in maps]
        self.packed: Packed | None = None

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """(…, d_in) -> one (…, d_out) per map."""
        if self.packed is not None and self.packed.usable():
            return self.packed(x).split_with_sizes(self.widths, -1)
        return [m(x) for m in self.maps]


def pack(model: nn.Module) -> None:
    """Prepare every linear map below `model` for inference on a CPU (elsewhere nothing changes).

    The prepared copies take as much memory as the weights. What is prepared already and unchanged stays as it is.
    """
    for holder, maps in _holders(model):
        if holder.packed is None or not _fresh(holder.packed):
            holder.packed = Packed.of(*maps)


def unpack(model: nn.Module) -> None:
    """Forget all prepared copies below `model`."""
    for holder, _ in _holders(model):
        holder.packed = None


def _holders(model: nn.Module) -> Iterator[tuple["Linear | Tied | SideBySide", Sequence["Linear | Tied"]]]:
    """What holds a prepared copy, and of which maps; maps that stand side by side have theirs together."""
    beside = [value for m in model.modules() for value in vars(m).values() if isinstance(value, SideBySide)]
    together = {id(m) for group in beside for m in group.maps}
    for group in beside:
        yield group, group.maps
    for module in model.modules():
        if isinstance(module, (Linear, Tied)) and id(module) not in together:
            yield module, (module,)


def _fresh(packed: Packed) -> bool:
    with torch.no_grad():
        return packed.usable()


def _servable(weight: Tensor) -> bool:
    """Whether oneDNN can serve this weight. (A tensor made in inference mode does not count its changes.)"""
    if weight.device.type != "cpu" or weight.is_inference() or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
