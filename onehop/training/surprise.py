"""From hidden states to how surprised the model is, with all logits at once or a chunk of tokens at a time.

The logits of N tokens over a vocabulary of V are often the largest tensor of a training step: 8,192 tokens by 128,000
ids are 4 GB in float32, and backward needs them again. In chunks only `chunk` · V of them exist at any moment, forward
and backward.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onehop.data.pack import NO_TARGET
from onehop.model.transformer import Head
from onehop.parts.linear import Linear, Tied, is_plain
from onehop.training.cross_entropy import Surprise, cross_entropy

HAS_LIBRARY = hasattr(F, "linear_cross_entropy")  # PyTorch from 2.13


def surprise(head: Head, hidden: Tensor, targets: Tensor, *, chunk: int | None = None, z: bool = False) -> Surprise:
    """Hidden states (N, C) and targets (N,), -100 where there is none -> Surprise.

    chunk: tokens whose logits are held at once; none: all. z: Chowdhery et al. 2022 (PaLM), arXiv:2204.02311,
    section 5: it keeps the logits from drifting.
    """
    x = head.narrow(head.transform(hidden))  # (N, C')
    if chunk is None or chunk >= x.size(0):
        return _of_logits(head, x, targets, z)
    if library_serves(head, x, z=z):
        return Surprise(_by_library(head, x, targets, chunk), None)
    return in_chunks(head, x, targets, chunk=chunk, z=z)


def in_chunks(head: Head, x: Tensor, targets: Tensor, *, chunk: int, z: bool = False) -> Surprise:
    """The plain twin, for every head: backward computes each chunk's logits again (one product of four more)."""
    nats, squares = [], []
    for rows, wanted in zip(x.split(chunk), targets.split(chunk), strict=True):
        part: Surprise = checkpoint(_of_logits, head, rows, wanted, z, use_reentrant=False, preserve_rng_state=False)
        nats.append(part.nats)
        squares += [] if part.z is None else [part.z]
    return Surprise(torch.stack(nats).sum(), torch.stack(squares).sum() if z else None)


def library_serves(head: Head, x: Tensor, *, z: bool) -> bool:
    """Whether `F.linear_cross_entropy` computes this head's loss: float32 or 64, no softcap, z-loss, adapter or hooks.

    In 16 bits it returns the sum of the batch's losses in 16 bits, which leaves of it three digits; and it cannot be
    part of a graph.
    """
    projection = head.projection
    plain = is_plain(projection, (Linear, Tied))
    plain = plain and head.softcap is None and not z
    scaled_bias = head.scale != 1.0 and projection.bias is not None  # the scale is laid on x, which misses the bias
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)
    return HAS_LIBRARY and plain and exact and not scaled_bias and not torch.compiler.is_compiling()


def _by_library(head: Head, x: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The same by PyTorch, which computes the gradients while it has the logits, and so each product once."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk, chunking_method=None)
    projection = head.projection
    x = x if head.scale == 1.0 else x * head.scale
    given: dict[str, Any] = {
        "reduction": "sum",
        "ignore_index": NO_TARGET,
        "options": options,
        "linear_bias": projection.bias,
    }
    return F.linear_cross_entropy(x, projection.weight, targets, **given)


def _of_logits(head: Head, x: Tensor, targets: Tensor, z: bool) -> Surprise:
    """All logits at once."""
    return cross_entropy(head.finished(head.projection(x)), targets, z=z)
