"""Attention as a plain function, with masks of your own: `onehop.attend`."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from onehop.base.errors import ConfigError
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score import score
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight

TENSOR = (Tensor, "a tensor. Use torch.as_tensor")
NUMBER = ((int, float, Tensor), "a number. Leave it out for the usual one")
KINDS: dict[str, tuple[Any, str]] = {
    "scale": NUMBER,
    "softcap": NUMBER,
    "bias": (nn.Module, "a module of positions. Give numbers to add as mask"),
    "rule": (ScoreRule, "a ScoreRule of onehop.parts.score_rule"),
}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: nn.Module | None = None,
    sinks: Tensor | None = None,
    rule: ScoreRule | None = None,
    kernel: str = "auto",
) -> Tensor:
    """softmax(q·kᵀ/√D)·v: q (B, T, H, D), k (B, S, K, D), v (B, S, K, Dv) -> (B, T, H, Dv); K divides H.

    `mask` is boolean (True: may look) or is added to the scores, after scale and softcap; shape: any that broadcasts
    to (B, H, T, S). The last query stands beside the last key: `causal` and `window` (in tokens, the own one included)
    count from there.
    `scale` is 1/√D if left out; `bias` maps positions to (B | 1, H, T, S) as in `ScoreRule`; a `rule` says all of these
    at once. `sinks` (H,) are scores that take weight and give nothing. A query that sees nothing gets zeros.
    """
    parts = {"scale": scale, "softcap": softcap, "bias": bias, "sinks": sinks}
    _check({"q": q, "k": k, "v": v}, {"mask": mask, **parts, "rule": rule})
    rule = _rule(rule, parts, q)
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ConfigError(f"attend: window={window} is no number of tokens, the own one included. Use 1, 2 or more.")
    t, s = q.size(1), k.size(1)
    q_first, k_first = max(s - t, 0), max(t - s, 0)
    q_places, k_places = Places.run(q_first, t, q.device), Places.run(k_first, s, k.device)
    sees = Sees("causal" if causal else "all", window)
    sight = Sight(sees, q_places, k_places)
    if mask is not None:
        given = _spread(mask, q, k)  # (B | 1, H | 1, T, S)
        if mask.dtype == torch.bool:
            sight = GivenSight(sees, q_places, k_places, given=given)
        else:
            rule = rule.adding(GivenBias(given, q_first=q_first, k_first=k_first))
    return score(q, Keys(k, v, k_places), rule, sight, kernel=kernel)


class GivenSight(Sight):
    """A visibility rule narrowed by a boolean mask of the user's own, (B | 1, H | 1, T, S)."""

    def __init__(self, sees: Sees, q: Places, k: Places, *, given: Tensor):
        super().__init__(sees, q, k)
        self.given = given

    @property
    def is_everything(self) -> bool:
        return False

    @property
    def is_triangle(self) -> bool:
        return False

    @property
    def mask(self) -> Tensor:
        return self.tile(slice(0, self.q.n), slice(0, self.k.n))

    def tile(self, rows: slice, cols: slice) -> Tensor:
        rest = super().tile(rows, cols)
        part = self.given[..., rows, cols]
        return part if rest is None else part & rest


class GivenBias(nn.Module):
    """An additive mask (B | 1, H | 1, T, S) as a score bias: positions -> its rows and columns."""

    def __init__(self, given: Tensor, *, q_first: int, k_first: int):
        super().__init__()
        self.given: Tensor
        self.register_buffer("given", given, persistent=False)
        self.q_first, self.k_first = q_first, k_first

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        """The mask's numbers at these positions."""
        rows, cols = q_at[0] - self.q_first, k_at[0] - self.k_first  # (T,), (S,)
        return self.given[..., rows.unsqueeze(1), cols]


def _rule(rule: ScoreRule | None, parts: dict[str, Any], q: Tensor) -> ScoreRule:
    given = [name for name, value in parts.items() if value is not None]
    if rule is not None and given:
        raise ConfigError(f"attend: {', '.join(given)} given beside a rule, which says them too. Put them in the rule.")
    if rule is None:
        scale = parts.pop("scale")
        rule = ScoreRule(scale=q.size(-1) ** -0.5 if scale is None else scale, **parts)
    if rule.sinks is not None and rule.sinks.shape != (q.size(2),):
        raise ConfigError(
            f"attend: sinks {tuple(rule.sinks.shape)} need one score for each of the {q.size(2)} query heads."
        )
    if rule.softcap is not None and not 0 < rule.softcap < math.inf:
        raise ConfigError(f"attend: softcap={rule.softcap} must be above 0 and finite. Leave it out for no cap.")
    if not math.isfinite(rule.scale):
        raise ConfigError(f"attend: scale={rule.scale} must be finite. Leave it out for 1/√D.")
    return rule


def _check(needed: dict[str, Any], optional: dict[str, Any]) -> None:
    """Whether every argument is the kind of thing that it has to be, and those that are needed fit each other."""
    for name, value in (needed | {name: value for name, value in optional.items() if value is not None}).items():
        kind, what = KINDS.get(name, TENSOR)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigError(f"attend: {name} is a {type(value).__name__.lower()}, and has to be {what}.")
    _check_shapes(**needed)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ConfigError(f"attend: {shapes}: each needs 4 dims, (batch, tokens, heads, width).")
    if not q.size(0) == k.size(0) == v.size(0) or k.shape[1:3] != v.shape[1:3]:
        raise ConfigError(f"attend: {shapes}: batches must agree, and k and v must agree in tokens and heads.")
    if q.size(-1) != k.size(-1):
        raise ConfigError(f"attend: {shapes}: q and k must have the same width (last dim).")
    if k.size(2) == 0 or q.size(2) % k.size(2):
        raise ConfigError(
            f"attend: {shapes}: {k.size(2)} key heads cannot share {q.size(2)} query heads: the first must divide the "
            f"second (is a tensor laid out as (batch, heads, tokens, width)?)."
        )
    if q.size(-1) == 0:
        raise ConfigError(f"attend: {shapes}: a width of 0 leaves nothing to compare. Give 1 or more.")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ConfigError(f"attend: q is {q.dtype}: convert q, k and v to a type with fractions, as torch.float32.")
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"attend: q is {q.dtype}, k {k.dtype}, v {v.dtype}: convert them to one type.")


def _spread(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask as a view of (B | 1, H | 1, T, S)."""
    full = (q.size(0), q.size(2), q.size(1), k.size(1))  # (B, H, T, S)
    if not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        raise ConfigError(
            f"attend: a mask of {mask.dtype}: give booleans (True: may look) or floats to add to the scores."
        )
    try:
        if torch.broadcast_shapes(mask.shape, full) != full:
            raise RuntimeError
    except RuntimeError:
        raise ConfigError(
            f"attend: a mask of shape {tuple(mask.shape)} does not broadcast to (B, H, T, S) = {full}."
        ) from None
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.expand(-1, -1, full[2], full[3])
