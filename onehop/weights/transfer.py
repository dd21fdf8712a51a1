"""Tensors from files into a model and back, claim by claim."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats.table import Claim, Matched
from onehop.model.build import build, check_device, torch_dtype
from onehop.model.transformer import Transformer
from onehop.weights.memory import Report, refuse_what_does_not_fit
from onehop.weights.ops import OPS
from onehop.weights.safetensors_files import DTYPES, Tensors


def skeleton(config: ModelConfig, *, where: Path) -> Transformer:
    """The model of a config that was found in a file, without weights. Raises CheckpointError for impossible sizes."""
    try:
        return build(config, device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that torch's own numbers cannot hold
        reason = (str(error).splitlines() or [""])[0][:120]
        raise CheckpointError(
            f"{where}: the config asks for tensors larger than any can be ({reason}). Get it again from its source."
        ) from error


def fill(
    model: Transformer,
    tensors: Tensors,
    matched: Matched,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> Transformer:
    """Give a model that was built on the meta device the weights of a file, and set it to evaluation mode.

    dtype None: the file's own. Buffers keep the type that the model gives them (counts, float32 biases of routers).
    Each tensor is read straight into its final place: the peak is the model and one tensor.
    Shapes are compared with the headers, and the size with the free memory, before anything is read. `report` gets one
    line about the latter, and one for each kind of tensors that are left out.
    """
    check_device(device)
    check_shapes(model, tensors, matched)
    to = tensors.dtype() if dtype is None else torch_dtype(dtype)
    refuse_what_does_not_fit(model, dtype=to, device=device, stored=tensors.nbytes, where=tensors.where, report=report)
    if report is not None:
        for reason, n in Counter(reason for _, reason in matched.dropped).items():
            report(f"{n} tensors left out: {reason}")
    check_twins(tensors, matched.twins)
    buffers = {name: buffer.dtype for name, buffer in model.named_buffers()}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    weights = {name: torch.zeros(shapes[name], dtype=buffers.get(name, to), device=device) for name in matched.zeros}
    for claim in matched.claims:
        dtypes = [buffers.get(name, to) for name in claim.ours]
        for name, (owned, source) in zip(claim.ours, _copies(claim, tensors, dtypes, device), strict=True):
            weights[name] = _fitting(name, owned, source, where=tensors.where)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _copies(
    claim: Claim, tensors: Tensors, dtypes: Sequence[torch.dtype], device: torch.device | str
) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
    """Each of our tensors in memory of its own (a file may change), and a way to look at what it was made of."""
    if claim.op == "same":
        for name, dtype in zip(claim.theirs, dtypes, strict=True):
            owned = torch.empty(tensors.entries[name].shape, dtype=dtype, device=device)
            tensors.read_into(name, owned)
            yield owned, partial(tensors.read, name)
        return
    if claim.op == "stack":  # as the operation does it, but each straight into its place
        shape = (len(claim.theirs), *tensors.entries[claim.theirs[0]].shape)
        owned = torch.empty(shape, dtype=dtypes[0], device=device)
        for name, place in zip(claim.theirs, owned.unbind(), strict=True):
            tensors.read_into(name, place)
        yield owned, partial(_stacked, claim, tensors)
        return
    found = OPS.get(claim.op).load([tensors.read(name) for name in claim.theirs], claim.sizes)
    for tensor, dtype in zip(found, dtypes, strict=True):
        owned = torch.empty(tensor.shape, dtype=dtype, device=device)
        yield owned.copy_(tensor), tensor.detach


def _stacked(claim: Claim, tensors: Tensors) -> Tensor:
    return OPS.get(claim.op).load([tensors.read(name) for name in claim.theirs], claim.sizes)[0]


def _fitting(name: str, owned: Tensor, source: Callable[[], Tensor], *, where: Path) -> Tensor:
    """The converted tensor, unless it holds NaN, or a number became infinite: float16 ends at 65504.

    NaN has to be found here: PyTorch's attention kernel takes a row of NaN scores for one that sees nothing. (A sum in
    its own dtype is added up in float32, and makes no copy.)
    """
    if owned.is_floating_point() and owned.sum().isnan() and owned.isnan().any():
        raise CheckpointError(f"{where}: {name} holds NaN: the weights are damaged. Get them again from their source.")
    if owned.dtype == torch.float16 and _has_infinity(owned):
        largest = float(source().abs().max())
        if largest < float("inf"):
            raise CheckpointError(f"{name} reaches {largest:g}, which float16 cannot hold. Use bfloat16 or float32.")
    return owned


def _has_infinity(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and any(map(math.isinf, (float(end) for end in tensor.aminmax())))


def dump(
    model: Transformer, claims: Iterable[Claim], *, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The model's tensors under their names, one by one, in `dtype` (None: the model's own); buffers as they are."""
    weights = model.state_dict()
    buffers = {name for name, _ in model.named_buffers()}
    for claim in claims:
        theirs = OPS.get(claim.op).save([weights[name] for name in claim.ours], claim.sizes)
        for name, tensor in zip(claim.theirs, theirs, strict=True):
            keep = dtype is None or buffers.issuperset(claim.ours)
            yield name, tensor.detach() if keep else tensor.detach().to(dtype)


def check_shapes(model: Transformer, tensors: Tensors, matched: Matched) -> None:
    """Compare the headers with what the model needs. Raises CheckpointError naming each tensor with both shapes."""
    weights = model.state_dict()
    needed = {*matched.zeros, *(name for claim in matched.claims for name in claim.ours)}
    assert needed == weights.keys(), f"the table and the model disagree about {needed ^ weights.keys()}"
    wrong = []
    for claim in matched.claims:
        theirs = OPS.get(claim.op).save([weights[name] for name in claim.ours], claim.sizes)
        for name, tensor in zip(claim.theirs, theirs, strict=True):
            entry = tensors.entries[name]
            if entry.dtype not in DTYPES and tensor.is_floating_point():
                known = ", ".join(DTYPES)
                raise CheckpointError(f"{tensors.where}: {name} has the dtype {entry.dtype}; weights can be {known}.")
            if entry.shape != tuple(tensor.shape):
                wrong.append(f"{name} has the shape {entry.shape}, but the config needs {tuple(tensor.shape)}")
    if wrong:
        more = f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise CheckpointError(
            f"{tensors.where}: {'; '.join(wrong[:6])}{more}. "
            "Check that the weights and the config belong to the same model."
        )


def check_twins(tensors: Tensors, twins: Iterable[tuple[str, str]]) -> None:
    """A tensor that repeats another one must be equal to it: quietly picking one of the two could be the wrong one."""
    for name, of in twins:
        if not torch.equal(tensors.read(name), tensors.read(of)):
            raise CheckpointError(
                f"{tensors.where}: the config says that {name} is {of}, but the two differ. Say in config.json that "
                f"they are two (tie_word_embeddings=false), or remove {name} from the file."
            )
