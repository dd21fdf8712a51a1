"""The loss of a batch through torch.compile, where that is asked for or pays, and can be had."""

import time
from collections.abc import Callable
from typing import Any

import torch

from onehop.config.attention import AttentionConfig
from onehop.config.recipe import Recipe
from onehop.cost.flops import TRAINING
from onehop.cost.planned import Plan
from onehop.model.compiler import no_compiler
from onehop.training.loss import Loss, batch_loss

LossOf = Callable[..., Loss]
Notify = Callable[[str], None]

# FLOPs of a run for each thread of a CPU from which the graph, a tenth to a third quicker, makes good for the wait
# until it is there (10 to 20 s for four to six layers): some ten minutes at 80 GFLOP/s.
PAYS = 5e13
SHORT = 512  # tokens per row, up to which a graph, which has no tiles, is quicker also where it lays out a mask


def pick_loss(recipe: Recipe, device: torch.device, *, wanted: bool | None = None, note: Notify, say: Notify) -> LossOf:
    """`batch_loss`, or that compiled: if the recipe says so, or `wanted` in the place of its `auto`.

    Where there is no compiler the reason is said once and nothing is compiled. `note` shows what is going on, `say`
    what stays.
    """
    choice = recipe.train.compile
    if choice == "auto":
        wanted = pays(recipe, device) if wanted is None else wanted
    if choice == "no" or (choice == "auto" and not wanted):
        return batch_loss
    why = no_compiler(device)
    if why is not None:
        say(f"not compiled: {why}")
        return batch_loss
    return Compiled(batch_loss, note=note, say=say)


def pays(recipe: Recipe, device: torch.device) -> bool:
    """What `train.compile=auto` comes to: on a GPU yes, on a CPU for long runs of dense models.

    No where batches have several shapes, each of which would have a graph of its own.
    """
    if recipe.task.encoder:
        return False
    if device.type != "cpu":
        return device.type == "cuda"
    cfg, model = recipe.train, recipe.model
    context = cfg.context or model.max_len
    dense = all(block.ffn.kind in ("plain", "gated") and _plain(block.attention, context) for block in model.layers())
    if model.parts or not dense or context > SHORT:
        return False
    flops = TRAINING * Plan(model).flops(new=context).seen * cfg.batch_size * cfg.steps
    return flops >= PAYS * torch.get_num_threads()


def _plain(a: AttentionConfig, context: int) -> bool:
    """Whether nothing happens between its scores and the softmax for which a graph would hold T × S numbers."""
    changed = a.softcap is not None or a.sinks or a.score is not None or a.position.kind not in ("none", "rope")
    return a.kind == "grouped" and not changed and (a.window is None or a.window >= context)


class Compiled:
    """A function of a batch, compiled for its shapes when it is first called; the wait for that is said.

    All batches of a run have one shape, so there is one graph for those of one document a row and one for those of
    several. What the compiler itself cannot do here is said, and from then on computed as it is written.
    """

    def __init__(self, function: LossOf, *, note: Notify, say: Notify):
        self.function, self.note, self.say = function, note, say
        self.works = True
        self._graph: LossOf = torch.compile(function, dynamic=False)
        self._warm = False

    def __call__(self, *args: Any, **options: Any) -> Loss:
        if not self.works:
            return self.function(*args, **options)
        if not self._warm:
            self.note("compiling: the first step takes up to some minutes")
        began = time.perf_counter()
        try:
            loss = self._graph(*args, **options)
        except (torch._dynamo.exc.BackendCompilerFailed, torch._inductor.exc.InductorError) as error:
            self.say(f"not compiled: {' '.join(str(error).split(chr(10))[:2])}")  # what failed, and how
            self.works = False
            return self.function(*args, **options)
        if not self._warm:
            self.say(f"compiled in {time.perf_counter() - began:.0f} s")
            self._warm = True
        return loss
