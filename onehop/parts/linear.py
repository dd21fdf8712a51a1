"""Linear maps, and several of them side by side.

For inference on a CPU `pack` makes one product of maps that read the same input, and lays the weights out the way
oneDNN wants them where that is quicker: in bfloat16, and in float32 on processors for which PyTorch's other library,
MKL, takes a general path. `F.linear` is the plain twin, and a test holds them together. A prepared copy knows the state
of the weights that it was made of: once they have changed, it is no longer used.

For training `multiply_by` chooses the product of all maps: `F.linear`, or `onednn` (`product.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onehop.parts.product import Product, made_by_amd


class Packed:
    """Weights (d_out, d_in), stacked, as they are or in oneDNN's layout, and the state in which they were copied."""

    def __init__(self, weight: Tensor, bias: Tensor | None, maps: Sequence["Linear | Tied"]):
        """maps: whose weights and biases were copied."""
        self.weight, self.bias, self.by_onednn = weight, bias, weight.is_mkldnn
        self.maps, self.widths = list(maps), [m.weight.size(0) for m in maps]
        places = [place for m in maps for place in m.places()]
        self._states = [
            (table, key, p, p._version, p.data_ptr(), p.dtype) for table, key in places if (p := table[key]) is not None
        ]

    @classmethod
    def of(cls, *maps: "Linear | Tied") -> "Packed | None":
        """The maps' weights and biases prepared, or None where nothing would be gained."""
        weights: list[Tensor] = [m.weight for m in maps]
        biases: list[Tensor] = [m.bias for m in maps if m.bias is not None]
        kept = {id(table.get(key)) for m in maps for table, key in m.places()}
        if not kept.issuperset(map(id, [*weights, *biases])):  # computed anew at each call, as a parametrization is
            return None
        by_onednn = all(map(_for_onednn, weights))
        # A tensor made in inference mode does not count its changes: an old copy could not be told from a fresh one.
        if weights[0].device.type != "cpu" or any(w.is_inference() for w in weights) or not (by_onednn or maps[1:]):
            return None
        with torch.no_grad():
            weight = torch.cat(weights)
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if by_onednn else weight
            bias = torch.cat(biases) if biases else None
        return cls(weight, bias, maps)

    def usable(self) -> bool:
        """Whether no gradient is wanted, and nothing has changed since: no optimizer step, load, move or conversion.

        The compiler lays weights out by itself, and cannot read these.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        for table, key, parameter, version, address, dtype in self._states:
            if table.get(key) is not parameter or parameter._version != version:
                return False
            if parameter.data_ptr() != address or parameter.dtype is not dtype:
                return False
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """(…, d_in) -> (…, d_out)"""
        if self.by_onednn:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied model has weights of its own, for which nothing is prepared."""


# A table of parameters and a name in it. (Read there, one costs a tenth of what it costs as a module's attribute.)
Place = tuple[Mapping[str, Tensor | None], str]


class Linear(nn.Linear):
    """y = x · Wᵀ + b: (…, d_in) -> (…, d_out). `weight` is (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False):
        super().__init__(d_in, d_out, bias=bias)
        self.packed: Packed | None = None
        self.product: Product = F.linear

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.usable():
            return self.packed(x)
        return self.product(x, self.weight, self.bias)

    def places(self) -> list[Place]:
        """Where its parameters are kept."""
        return [(self._parameters, key) for key in ("weight", "bias") if self._parameters.get(key) is not None]


class Tied(nn.Module):
    """A linear map whose weight (d_out, d_in) is another module's, here the token embedding's; it owns only a bias."""

    def __init__(self, owner: nn.Embedding, bias: bool = False):
        super().__init__()
        self._owner = (owner,)  # in a tuple: not registered, so the weight is listed and saved once
        self.bias = nn.Parameter(torch.zeros(owner.num_embeddings)) if bias else None
        self.packed: Packed | None = None
        self.product: Product = F.linear

    @property
    def weight(self) -> Tensor:
        return self._owner[0].weight

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.usable():
            return self.packed(x)
        return self.product(x, self.weight, self.bias)

    def places(self) -> list[Place]:
        """Where its parameters are kept."""
        bias = [(self._parameters, "bias")] if self._parameters.get("bias") is not None else []
        return [(self._owner[0]._parameters, "weight"), *bias]


class SideBySide:
    """Several linear maps of one input, read as (w1(x), w2(x), …).

    One product over their stacked rows once packed, and while training on a CPU, where stacking costs little beside the
    passes over x and its gradient that it saves. The maps are those that stand under `names` in `owner` when it is
    called; one that is more than a plain Linear (adapted, hooked, quantised) is asked by itself, as all are then.
    """

    def __init__(self, owner: nn.Module, *names: str):
        self.owner, self.names = owner, names
        self.packed: Packed | None = None
        self.product: Product = F.linear

    @property
    def maps(self) -> list[Any]:
        """The maps as they are now."""
        table = self.owner._modules
        return [table[name] for name in self.names]

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        """(…, d_in) -> one (…, d_out) per map."""
        packed, maps = self.packed, self.maps
        if packed is not None and packed.usable() and packed.maps == maps and all(map(is_plain, maps)):
            return packed(x).split_with_sizes(packed.widths, -1)
        if not torch.is_grad_enabled() or x.device.type != "cpu" or not _one_product(maps):
            return [m(x) for m in maps]
        widths = [m.out_features for m in maps]
        biases: list[Tensor] = [m.bias for m in maps if m.bias is not None]
        bias = torch.cat(biases) if biases else None
        return self.product(x, torch.cat([m.weight for m in maps]), bias).split_with_sizes(widths, -1)


def multiply_by(model: nn.Module, product: Product) -> None:
    """Let every linear map below `model` compute x · Wᵀ + b by `product`: `F.linear`, or `onednn`."""
    for module in model.modules():
        for holder in (module, *vars(module).values()):
            if isinstance(holder, (Linear, Tied, SideBySide)):
                holder.product = product


def pack(model: nn.Module) -> None:
    """Prepare every linear map below `model` for inference on a CPU (elsewhere nothing changes).

    The prepared copies take up to as much memory as the weights. What is prepared already and unchanged stays as it is.
    """
    for holder, maps in _holders(model):
        if holder.packed is None or not _fresh(holder.packed):
            holder.packed = Packed.of(*maps)


def is_packed(model: nn.Module) -> bool:
    """Whether anything below `model` is prepared."""
    return any(holder.packed is not None for holder, _ in _holders(model))


def unpack(model: nn.Module) -> None:
    """Forget all prepared copies below `model`."""
    for holder, _ in _holders(model):
        holder.packed = None


def _holders(model: nn.Module) -> Iterator[tuple["Linear | Tied | SideBySide", Sequence["Linear | Tied"]]]:
    """What holds a prepared copy, and of which maps; maps that stand side by side have theirs together."""
    beside = [value for m in model.modules() for value in vars(m).values() if isinstance(value, SideBySide)]
    groups = [(group, maps) for group in beside if _one_product(maps := group.maps)]
    together = {id(m) for _, maps in groups for m in maps}
    yield from groups
    for module in model.modules():
        if isinstance(module, (Linear, Tied)) and id(module) not in together:
            yield module, (module,)


def _one_product(maps: Sequence[nn.Module]) -> bool:
    """Whether calling these maps one by one is just x · Wᵀ + b: no subclass, nobody who listens, biases alike."""
    return all(map(is_plain, maps)) and len({m.bias is None for m in maps}) == 1


def is_plain(m: nn.Module, kinds: tuple[type, ...] = (Linear,)) -> bool:
    """Whether it is a linear map of one of these kinds, to which nothing has been added and nobody listens."""
    if type(m) not in kinds or "forward" in (own := m.__dict__):
        return False
    hooks = own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    return not hooks


def _fresh(packed: Packed) -> bool:
    with torch.no_grad():
        return packed.usable()


def _for_onednn(weight: Tensor) -> bool:
    """Whether oneDNN serves this weight, and no other library does so faster."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and made_by_amd() and torch.backends.mkl.is_available()
