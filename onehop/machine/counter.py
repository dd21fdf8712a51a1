"""FLOPs as PyTorch counts them while it runs, grouped products included: what the planner's arithmetic is held to."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def flops_of(call: Callable[[], Any]) -> int:
    """FLOPs of the matrix products that `call` runs. On a CPU, PyTorch's counter sees no fused attention; meta does."""
    formulas = {torch.ops.aten._grouped_mm: _grouped_mm}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        call()
    return counter.get_total_flops()


def _grouped_mm(a: Any, b: Any, offs: Any = None, *more: Any, out_shape: Any = None, **options: Any) -> int:
    """The shapes of a grouped product: each row, or each column of the inner dim, belongs to one group.

    (M, K) · (E, K, N) and (M, K) · (K, N) in groups of K take 2·M·K·N; (E, M, K) · (K, N) in groups of N likewise.
    """
    m, k = a[-2], a[-1]
    n = b[-1]
    batches = a[0] if len(a) == 3 and len(b) == 3 else 1
    return 2 * batches * m * k * n
