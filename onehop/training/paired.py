"""Whether two recipes differ: differences paired by seed, and the interval of Student's t distribution."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Mean of the differences of n pairs, and the ends of its interval (None: one pair tells no spread)."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def verdict(self) -> str:
        """Of a loss: "better" (lower) or "worse"; "undecided" where the interval covers zero or is not known."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "undecided"
        return "better" if self.high < 0 else "worse"


def difference(scores: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """By how much `scores` (by seed) exceed those of `base`, over the seeds that both have; None without any.

    What a seed decides alike for both (order of the rows, luck of the draw) cancels out, so that few seeds suffice.
    """
    pairs = [scores[seed] - base[seed] for seed in scores if seed in base]
    if not pairs:
        return None
    mean = statistics.fmean(pairs)
    if len(pairs) < 2:
        return Difference(mean, None, None, 1)
    half = quantile(CONFIDENCE, len(pairs) - 1) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Difference(mean, mean - half, mean + half, len(pairs))


def quantile(share: float, freedom: int) -> float:
    """The t within which ± lies that share of Student's distribution with so many degrees of freedom."""
    low, high = 0.0, 1.0
    while within(high, freedom) < share:
        high *= 2
    for _ in range(200):  # each halves the interval; a float has 53 bits
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < share else (low, middle)
    return high


def within(t: float, freedom: int) -> float:
    """P(|T| ≤ t) (Abramowitz and Stegun, "Handbook of mathematical functions", 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for i in range(odd + 2, freedom + 1, 2):  # odd: cos θ + 2/3 cos³ θ + …; even: 1 + 1/2 cos² θ + …
        total += term
        term *= (i - 1) / i * math.cos(angle) ** 2
    inner = math.sin(angle) * total
    return (angle + inner) * 2 / math.pi if odd else inner
