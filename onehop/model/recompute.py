"""Less memory for more work: activations that backward computes again instead of keeping them.

Chen et al. 2016, arXiv:1604.06174, section 3; selective: Korthikanti et al. 2022, arXiv:2205.05198, section 5.

How a block is gone through again must be how it was gone through first. Dropout is a function of its place and not of
a generator, so that it repeats by itself. Router losses are part of what a block returns: they are computed once more,
but enter the loss once.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from onehop.model.transformer import Passed, Transformer, through
from onehop.parts.attention import Memory
from onehop.parts.cache import LayerCache
from onehop.parts.step import Step

# What costs most to compute: matrix products, and attention without its matrix of scores.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def recompute(model: Transformer, what: str) -> None:
    """Let backward compute again: "none", "block" (all but each block's input), "selective" (all but products).

    Selective keeps what matrix products and attention give, and repeats norms, activations, dropout, sums and copies.
    """
    stacks = [model] if model.encoder is None else [model, model.encoder]
    for stack in stacks:
        stack.through = WAYS[what]


def _again(
    layer: nn.Module,
    x: Tensor,
    step: Step,
    *,
    cache: LayerCache | None = None,
    memory: Memory | None = None,
    contexts: Callable[[], Any] | None = None,
) -> Passed:
    """One block whose inside is computed again by backward."""
    if cache is not None or not torch.is_grad_enabled():
        return through(layer, x, step, cache=cache, memory=memory)
    # What the first pass adds to `step` serves the blocks after it. The second pass starts from what the first knew,
    # and so computes the same: a table of biases, say, in the first block only. A graph has no second pass to see, and
    # may not add anything to `step`.
    steps = [] if torch.compiler.is_compiling() else [step]
    known = step.copy()

    def block(x: Tensor) -> Passed:
        return through(layer, x, steps.pop() if steps else known.copy(), memory=memory)

    how: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
    passed: Passed = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False, **how)
    return passed


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _kept() else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _kept() -> frozenset[Any]:
    found = [getattr(torch.ops.aten, name, None) for name in (*PRODUCTS, *ATTENTION)]
    by_onednn = getattr(getattr(torch.ops, "mkldnn", None), "_linear_pointwise", None)
    return frozenset(op.default for op in (*found, by_onednn, torch.ops.onehop.linear) if op is not None)


WAYS: dict[str, Callable[..., Passed]] = {
    "none": through,
    "block": _again,
    "selective": partial(_again, contexts=partial(create_selective_checkpoint_contexts, _policy)),
}
