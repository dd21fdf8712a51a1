"""Whether a gradient written by hand (`torch.autograd.Function`) serves, or the one that PyTorch derives has to."""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

# Types of tensors that are that and no more, as those without numbers are on which a step is rehearsed.
ORDINARY = frozenset({Tensor, nn.Parameter, FakeTensor})


def by_hand(*tensors: Tensor | None) -> bool:
    """Whether the gradient of one of these will be asked for, by `backward` alone, and of code that is not compiled.

    The compiler fuses what PyTorch derives better than what is written.
    """
    return by_backward(*tensors) and not torch.compiler.is_compiling()


def by_backward(*tensors: Tensor | None) -> bool:
    """Whether the gradient of one of these will be asked for, and by `backward` alone.

    torch.func (vmap, jvp, …) would need rules of its own for a Function, and to have them (`setup_context`) costs each
    call more than most operations of a small model take. Nor has a Function a derivative forwards.
    """
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return any(t is not None and t.requires_grad for t in tensors)
