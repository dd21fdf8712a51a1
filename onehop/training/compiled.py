"""The loss of a batch through torch.compile, where that is asked for and can be had."""

import time
from collections.abc import Callable
from typing import Any

import torch

from onehop.config.recipe import TrainConfig
from onehop.model.compiler import no_compiler
from onehop.training.loss import Loss, batch_loss

LossOf = Callable[..., Loss]
Notify = Callable[[str], None]


def pick_loss(cfg: TrainConfig, device: torch.device, *, one_shape: bool = True, note: Notify, say: Notify) -> LossOf:
    """`batch_loss`, compiled by `train.compile`: with auto on a GPU only, as on a CPU it wins a few hundredths.

    one_shape: whether all batches have it; auto compiles for no others, as each shape would have a graph of its own.
    Where there is no compiler the reason is said once and nothing is compiled. `note` shows what is going on, `say`
    what stays.
    """
    if cfg.compile == "no" or (cfg.compile == "auto" and not (device.type == "cuda" and one_shape)):
        return batch_loss
    why = no_compiler(device)
    if why is not None:
        say(f"not compiled: {why}")
        return batch_loss
    return Compiled(batch_loss, note=note, say=say)


class Compiled:
    """A function of a batch, compiled for its shapes when it is first called; the wait for that is said.

    All batches of a run have one shape, so there is one graph for those of one document a row and one for those of
    several. What the compiler itself cannot do here is said, and then computed as it is written.
    """

    def __init__(self, function: LossOf, *, note: Notify, say: Notify):
        self.function, self.note, self.say = function, note, say
        self._graph: LossOf = torch.compile(function, dynamic=False)
        self._warm = False

    def __call__(self, *args: Any, **options: Any) -> Loss:
        if self._warm:
            return self._graph(*args, **options)
        self._warm = True
        self.note("compiling: the first step takes up to some minutes")
        began = time.perf_counter()
        try:
            loss = self._graph(*args, **options)
        except (torch._dynamo.exc.BackendCompilerFailed, torch._inductor.exc.InductorError) as error:
            self.say(f"not compiled: {' '.join(str(error).split(chr(10))[:2])}")  # what failed, and how
            self._graph = self.function
            return self.function(*args, **options)
        self.say(f"compiled in {time.perf_counter() - began:.0f} s")
        return loss
