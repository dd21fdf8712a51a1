"""One attention, three kernels: which of them computes a score rule, and why.

`plain` is the definition, `tiled` needs no T × S memory, `fused` is PyTorch's own. All give the same numbers; a kernel
that cannot express a rule hands over to one that can, and `choose` says so.
"""

from dataclasses import dataclass

from torch import Tensor

from onehop.base.choices import Choices
from onehop.parts.keys import Keys
from onehop.parts.score_fused import fused, why_not_fused
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_tiled import tiled, why_not_tiled
from onehop.parts.sight import Sight

KERNELS = Choices("kernel", {"plain": plain, "tiled": tiled, "fused": fused})


@dataclass(frozen=True)
class Choice:
    """The kernel that computes a rule, and the reason in words."""

    kernel: str
    why: str


def score(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, kernel: str = "auto") -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), by the kernel that `choose` names."""
    return KERNELS.get(choose(q, keys, rule, sight, kernel=kernel).kernel)(q, keys, rule, sight)


def choose(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, kernel: str = "auto") -> Choice:
    """The quickest kernel that computes this rule exactly, or the one asked for, unless it cannot."""
    if kernel == "tiled" and why_not_tiled(rule) is None:
        return Choice("tiled", "asked for")
    if kernel == "plain":
        return Choice("plain", "asked for")
    why_not = why_not_fused(q, rule, sight)
    return Choice("fused", "PyTorch's kernel computes it all") if why_not is None else Choice("plain", why_not)
