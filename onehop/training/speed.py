"""How much of the machine a run uses: FLOP/s, and their share of what its largest products reach (MFU)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from onehop.base.units import human_flops
from onehop.config.recipe import Recipe
from onehop.cost.flops import TRAINING
from onehop.cost.planned import Plan
from onehop.machine.measure import Bench
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
class Speed:
    """Turns tokens into FLOPs: those that the model needs, by the planner. Nothing computed twice or masked counts."""

    per_token: float | None  # None: parts of the user's own do not tell
    peak: Peak | None

    @classmethod
    def of(cls, recipe: Recipe, *, context: int, peak: Peak | None) -> "Speed":
        """For rows of `context` tokens."""
        flops = Plan(recipe.model).flops(new=context)
        known = counts(recipe) and not flops.missing
        return cls(None if not known else TRAINING * flops.seen / context, peak)

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, appendix B): the share of the peak."""
        if self.per_token is None or self.peak is None:
            return None
        return self.per_token * tokens_per_s / self.peak.flops_per_s

    def numbers(self, tokens_per_s: float) -> dict[str, Any]:
        """For a report; what is not known is left out."""
        flops = None if self.per_token is None else self.per_token * tokens_per_s
        found = {"flops_per_s": flops, "mfu": self.mfu(tokens_per_s)}
        return {"tokens_per_s": tokens_per_s, **{key: value for key, value in found.items() if value is not None}}

    def text(self, tokens_per_s: float) -> str:
        """For the live line: '  1.3 TFLOP/s  MFU 41.0%'."""
        mfu = self.mfu(tokens_per_s)
        flops = "" if self.per_token is None else f"  {human_flops(self.per_token * tokens_per_s)}/s"
        return flops + ("" if mfu is None else f"  MFU {mfu:.1%}")
