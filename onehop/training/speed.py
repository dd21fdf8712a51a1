"""How much of the machine a run uses: FLOP/s, and their share of what its largest products reach (MFU)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F

from onehop.base.units import human_flops
from onehop.config.recipe import Recipe
from onehop.cost.flops import Pass
from onehop.cost.learning import Learning, training_flops
from onehop.cost.planned import Plan
from onehop.data.loader import Batch
from onehop.machine.measure import Bench
from onehop.model.transformer import Transformer
from onehop.parts.lora import Adapted
from onehop.parts.product import onednn

ENOUGH = 0.005  # seconds: on a CPU, products that take longer are no faster
WIDTHS = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}


@dataclass(frozen=True)
class Peak:
    """FLOP/s of the fastest square product, of two matrices `width` wide."""

    flops_per_s: float
    width: int
    dtype: str


def measure_peak(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """Multiply ever larger matrices, for some tenths of a second; None where there is no clock for it.

    Measured and not looked up: a table does not know this processor, its share of the machine or its clock today.
    """
    if device.type not in WIDTHS:
        return None
    bench = Bench(tries=5, shortest=0.01, device=device.type, pick=min)  # what else runs only makes it slower
    products = (F.linear, onednn) if device.type == "cpu" and dtype == torch.float32 else (F.linear,)
    best: Peak | None = None
    for width in WIDTHS[device.type]:
        a, b = (torch.ones(width, width, dtype=dtype, device=device) for _ in range(2))
        seconds = min(bench.seconds(partial(product, a, b)) for product in products)
        found = Peak(2 * width**3 / seconds, width, str(dtype).removeprefix("torch."))
        best = found if best is None or found.flops_per_s > best.flops_per_s else best
        if device.type == "cpu" and seconds > ENOUGH:
            break
    if device.type == "cuda":
        del a, b
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # the run's own peak is to be told, not this one's
    return best


def counts(recipe: Recipe) -> bool:
    """Whether the planner's count is that of the run: every token a target, every weight with a gradient."""
    return recipe.task.kind == "next" and recipe.tune.lora is None and not recipe.tune.freeze


@dataclass(frozen=True)
class Read:
    """What steps have read, without padding: rows, tokens of them and of an encoder's sources; and their targets."""

    rows: int = 0
    tokens: int = 0
    source: int = 0
    targets: int = 0

    def plus(self, batches: Iterable[Batch]) -> "Read":
        """These batches too."""
        rows, tokens, source, targets = self.rows, self.tokens, self.source, self.targets
        for batch in batches:
            rows, targets = rows + len(batch.tokens), targets + batch.n_targets
            tokens += int((batch.at >= 0).sum()) if batch.padded else batch.at.numel()
            if batch.source is not None:
                source += batch.source.numel() if batch.source_at is None else int((batch.source_at >= 0).sum())
        return Read(rows, tokens, source, targets)


@dataclass(frozen=True)
class Work:
    """The FLOPs that a model needs to learn from what it reads. Nothing computed twice or masked counts."""

    plan: Plan
    learning: Learning
    context: int

    @classmethod
    def of(cls, model: Transformer, *, context: int) -> "Work | None":
        """For rows of `context` tokens, of which what is frozen and what adapts is known; None: own parts tell none."""
        plan = Plan(model.config)
        return None if plan.flops(new=1).missing else cls(plan, learning_of(model), context)

    def per_target(self, read: Read) -> float | None:
        """FLOPs for each target of what was read; of an encoder-decoder, for rows of their length on average."""
        if not read.targets:
            return None
        if not self.plan.config.encoder:
            return self._whole / self.context * read.tokens / read.targets
        new, source = (max(1, round(n / read.rows)) for n in (read.tokens, read.source))
        rows = (read.tokens + read.source) / (new + source)  # as many of this length
        return self._row(Pass(new, source=source)) * rows / read.targets

    @cached_property
    def _whole(self) -> float:
        """FLOPs of a whole row, for which every line of metrics.jsonl asks."""
        return self._row(Pass(self.context))

    def _row(self, step: Pass) -> float:
        return training_flops(self.plan.config, self.plan.weights, step, self.learning).seen


def learning_of(model: Transformer) -> Learning:
    """What of a model learns."""
    names = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
    return Learning(names, {name: m.down.out_features for name, m in model.named_modules() if isinstance(m, Adapted)})


@dataclass(frozen=True)
class Speed:
    """Turns targets into FLOPs, and their number per second into a share of the peak."""

    per_target: float | None  # None: not known
    peak: Peak | None

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): the share of the peak."""
        if self.per_target is None or self.peak is None:
            return None
        return self.per_target * tokens_per_s / self.peak.flops_per_s

    def numbers(self, tokens_per_s: float) -> dict[str, Any]:
        """For a report; what is not known is left out."""
        flops = None if self.per_target is None else self.per_target * tokens_per_s
        found = {"flops_per_s": flops, "mfu": self.mfu(tokens_per_s)}
        return {"tokens_per_s": tokens_per_s, **{key: value for key, value in found.items() if value is not None}}

    def text(self, tokens_per_s: float) -> str:
        """For the live line: '  1.3 TFLOP/s  MFU 41.0%'."""
        mfu = self.mfu(tokens_per_s)
        flops = "" if self.per_target is None else f"  {human_flops(self.per_target * tokens_per_s)}/s"
        return flops + ("" if mfu is None else f"  MFU {mfu:.1%}")
