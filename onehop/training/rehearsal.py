"""A training step on tensors without numbers: what it will hold at its peak, before there is a first step.

The code is the run's own, so that what encoders, adapters and frozen weights keep is told by what keeps it. Nothing is
multiplied, and no tensor takes memory: `torch`'s FakeTensor knows its shape, type and device, and the size of a storage
that is not there.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.machine.live import LiveBytes
from onehop.model.transformer import Transformer
from onehop.training.optimizer import make_optimizer
from onehop.training.step import training_step

READ, GROUPED = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._grouped_mm.default


def rehearsed_peak(
    model: Transformer,
    cfg: TrainConfig,
    batches: Sequence[Batch],
    *,
    precision: torch.dtype,
    beside: Iterable[Tensor] = (),
) -> int | None:
    """Bytes of tensors at the peak of a step over these micro-batches, when the optimizer has its state.

    beside: other tensors that live as long as the run. None for a model whose parts ask for numbers that are not there.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        double = _double(model, fake)
        others = [fake.from_tensor(tensor) for tensor in beside]
        with fake:
            again = [_without_numbers(batch) for batch in batches]
            optimizer = make_optimizer(double, cfg, width=model.config.d_model, precision=precision)
            for parameter in double.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            optimizer.step()  # which makes its state
            optimizer.zero_grad(set_to_none=True)
            state = [x for held in optimizer.state.values() for x in held.values() if isinstance(x, Tensor)]
            step = partial(training_step, double, optimizer, again, index=1, cfg=cfg, precision=precision)
            with _Numberless([*double.parameters(), *double.buffers(), *state, *others]) as live:
                step()
    except (RuntimeError, TypeError, ValueError, AssertionError):
        return None
    return live.peak


def _double(model: Transformer, fake: FakeTensorMode) -> Transformer:
    """The same model of tensors without numbers."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(fake.from_tensor(p.detach()), requires_grad=p.requires_grad) for p in model.parameters()
    }
    memo |= {id(b): fake.from_tensor(b) for b in model.buffers()}
    return copy.deepcopy(model, memo)


def _without_numbers(batch: Batch) -> Batch:
    """Tensors of its own, though another batch is made of the same one."""
    own: dict[str, Any] = {}
    for name in (field.name for field in fields(batch)):
        value = getattr(batch, name)
        own[name] = torch.empty_like(value) if isinstance(value, Tensor) else value
    return Batch(**own)


class _Numberless(LiveBytes):
    """Where code reads a number of a tensor, it is zero; and products of experts, for which torch has no shapes."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is READ:
            return _zero(args[0].dtype)
        if func is GROUPED:
            return super().__torch_dispatch__(_grouped, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


def _zero(dtype: torch.dtype) -> bool | float | int:
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


def _grouped(a: Tensor, b: Tensor, ends: Tensor, *_: Any, **options: Any) -> Tensor:
    """(M, in) · (E, in, out) -> (M, out), or, for the gradient of weights, (in, M) · (M, out) -> (E, in, out)."""
    out = (a.size(0), b.size(-1)) if b.dim() == 3 else (ends.size(0), a.size(0), b.size(-1))
    return a.new_empty(out)
