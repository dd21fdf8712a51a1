"""The loss of a batch through torch.compile, where that is asked for or pays, and can be had."""

import time
from collections.abc import Callable
from typing import Any

import torch

from onehop.config.attention import AttentionConfig
from onehop.config.recipe import Recipe
from onehop.cost.flops import TRAINING
from onehop.cost.planned import Plan
from onehop.data.loader import Batch
from onehop.model.compiler import apart, failures, in_short, no_compiler
from onehop.model.transformer import Transformer
from onehop.training.loss import Loss, batch_loss, places

LossOf = Callable[..., Loss]
Notify = Callable[[str], None]

# FLOPs of a run for each thread of a CPU from which the graph makes good for the wait until it is there (10 to 40 s):
# some ten minutes at 80 GFLOP/s. With Llama's parts it was 1.3 to 1.6 times as quick, with GPT-2's up to 1.1 times.
PAYS = 5e13
SHORT = 512  # tokens per row, up to which a graph, which has no tiles, was no slower where it lays out a mask


def pick_loss(recipe: Recipe, device: torch.device, *, wanted: bool | None = None, note: Notify, say: Notify) -> LossOf:
    """`batch_loss`, or that compiled: as the recipe says, or, in a run that is resumed by it, as it was (`wanted`).

    Where there is no compiler the reason is said once and nothing is compiled. `note` shows what is going on, `say`
    what stays.
    """
    if not (asked_for(recipe, device) if wanted is None else wanted):
        return batch_loss
    why = no_compiler(device)
    if why is not None:
        say(f"not compiled: {why}")
        return batch_loss
    return Compiled(batch_loss, note=note, say=say)


def asked_for(recipe: Recipe, device: torch.device) -> bool:
    """Whether a recipe wants its loss compiled, there."""
    choice = recipe.train.compile
    return pays(recipe, device) if choice == "auto" else choice == "yes"


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
    """The loss of a batch, compiled for a kind of batch when the first of it comes; the wait for that is said.

    All batches of a run have one shape, so there is one graph for those of one document a row and one for those of
    several, or with padding that the model counts. All of it is one graph, forward and backward, or nothing: what falls
    apart into several is compiled anew in the midst of a run, elsewhere in one that is resumed. What cannot be done is
    said, and from then on computed as it is written.
    """

    def __init__(self, function: LossOf, *, note: Notify, say: Notify):
        self.function, self.note, self.say = function, note, say
        self.works, self.seconds = True, 0.0  # seconds: waited for graphs
        self._graph: LossOf = torch.compile(apart(function), dynamic=False, fullgraph=True)
        self._ready: set[tuple[int, ...]] = set()

    def __call__(self, model: Transformer, batch: Batch, **options: Any) -> Loss:
        """As `batch_loss`."""
        kind = (*batch.tokens.shape, batch.packed, places(model, batch) is None)  # what the graph depends on
        if self.works and kind not in self._ready:
            self._make(kind, model, batch, **options)
        if self.works:
            try:
                return self._graph(model, batch, **options)
            except failures() as error:  # a graph that was made anew, too often
                self._give_up(error)
        return self.function(model, batch, **options)

    def _make(self, kind: tuple[int, ...], model: Transformer, batch: Batch, **options: Any) -> None:
        """Have the graph made, there and back: the way back is compiled when it is first gone."""
        self.note("compiling: the first step takes up to some minutes")
        began = time.perf_counter()
        learning = [p for p in model.parameters() if p.requires_grad]
        try:
            loss = self._graph(model, batch, **options)
            torch.autograd.grad(loss.surprise, learning, allow_unused=True)
        except failures() as error:
            self._give_up(error)
            return
        finally:
            self.seconds += time.perf_counter() - began
        self._ready.add(kind)
        self.say(f"compiled in {time.perf_counter() - began:.0f} s")

    def _give_up(self, error: Exception) -> None:
        self.say(f"not compiled: {in_short(error)}")
        self.works = False
