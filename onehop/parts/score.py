"""One attention, three kernels: which of them computes a score rule, and why.

`plain` is the definition, `tiled` needs no T × S memory, `fused` is PyTorch's own. All give the same numbers; a kernel
that cannot express a rule hands over to one that can, and `choose` says so.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from onehop.base.choices import Choices
from onehop.base.errors import ConfigError, did_you_mean
from onehop.parts.keys import Keys
from onehop.parts.score_fused import fused, lays_out_mask, why_not_fused
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_tiled import tiled, why_not_tiled
from onehop.parts.sight import Sight

KERNELS = Choices("kernel", {"plain": plain, "tiled": tiled, "fused": fused})

# Scores of one head, T · S, from which tiles are quicker on a CPU: than the definition, and than PyTorch's kernel with
# a mask or bias laid out for it. At these they met, forward and backward, with 8 to 96 heads in all.
TILES_BEAT_PLAIN = 64 * 64
TILES_BEAT_A_MASK = 384 * 384
# Elsewhere PyTorch's kernel is quicker at any size; tiles take over where the mask alone would need a quarter of a GiB.
MASK_TOO_LARGE = 2**26


def check_kernel(name: str) -> None:
    """Raises ConfigError for what is neither a kernel nor "auto"."""
    if name != "auto" and name not in KERNELS:
        raise ConfigError(f"kernel {name!r} does not exist. {did_you_mean(str(name), ('auto', *KERNELS))}")


@dataclass(frozen=True)
class Choice:
    """The kernel that computes a rule, and the reason in words."""

    kernel: str
    why: str


def score(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, kernel: str = "auto") -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), by the kernel that `choose` names."""
    if kernel == "auto" and rule.is_plain and _fused_serves(q, keys, rule, sight):
        return fused(q, keys, rule, sight)
    return KERNELS.get(choose(q, keys, rule, sight, kernel=kernel).kernel)(q, keys, rule, sight)


def choose(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, kernel: str = "auto") -> Choice:
    """The quickest kernel that computes this rule exactly; the one asked for, unless it cannot. Reads no tensor."""
    if kernel == "plain":
        return Choice("plain", "asked for")
    check_kernel(kernel)
    if not q.numel():  # the others cut and fold tensors, which need a size to do so
        return Choice("plain", "no token is there to look")
    why_not = {"tiled": why_not_tiled(rule), "fused": why_not_fused(q, rule, sight)}
    if kernel == "auto":
        return _quickest(q, keys, rule, sight, why_not)
    if why_not[kernel] is None:
        return Choice(kernel, "asked for")
    other = _quickest(q, keys, rule, sight, why_not)
    return Choice(other.kernel, f"{kernel} was asked for, but {why_not[kernel]}")


def _fused_serves(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight) -> bool:
    """Whether PyTorch's kernel is the quickest for a rule that it computes: with no mask or copy of keys laid out."""
    return keys.whole and q.numel() > 0 and not lays_out_mask(q, rule, sight)


def _quickest(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, why_not: dict[str, str | None]) -> Choice:
    t, s = sight.q.n, sight.k.n
    if why_not["fused"] is None and _fused_serves(q, keys, rule, sight):
        return _FUSED
    if why_not["tiled"] is not None:
        return Choice("plain", why_not["tiled"])
    if torch.compiler.is_compiling():  # a loop over tiles would be unrolled, tile by tile
        return Choice("plain", f"{why_not['fused']}; tiles are not compiled") if why_not["fused"] else _FUSED
    if not keys.whole:
        return Choice("tiled", "the keys do not lie in one piece, and would have to be copied whole")
    if why_not["fused"] is not None:
        if t == 1 or t * s <= TILES_BEAT_PLAIN:
            return Choice("plain", f"{why_not['fused']}; too few scores for tiles")
        return Choice("tiled", f"{why_not['fused']}; tiles need no {t} × {s} memory")
    on_cpu = q.device.type == "cpu"
    if t * s > TILES_BEAT_A_MASK if on_cpu else t * s * (q.size(2) if rule.bias is not None else 1) > MASK_TOO_LARGE:
        return Choice("tiled", f"tiles need no {t} × {s} mask, and skip what nobody sees")
    return Choice("fused", f"a {t} × {s} mask is small enough to lay out for PyTorch's kernel")


_FUSED = Choice("fused", "PyTorch's kernel computes all of it")
