"""A scaling law fitted to one's own runs: Huber loss on the logarithm of the loss, L-BFGS from a grid, bootstrap.

Hoffmann et al. 2022, arXiv:2203.15556, section 3.3 and appendix D.2: minimise Σ Huber_δ(log L_i - LSE(a - α log N_i,
b - β log D_i, e)), δ = 1e-3, and keep the best of all starts. All starts are followed at once, as rows of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from onehop.base.errors import DataError
from onehop.cost.scaling import Law

Array = NDArray[np.float64]
DELTA = 1e-3
MEMORY, STEPS = 10, 400  # steps that L-BFGS remembers, and takes at most
SETTLED = 1e-15  # a fall of the objective that is none
# Starts: appendix D.2's grid of α, β, e, a, b, two steps coarser.
GRID = ((0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 0.5, 1.0, 1.5, 2.0), (-1.0, 0.0, 1.0), (0.0, 10.0, 20.0), (0.0, 10.0, 20.0))
FLAT = 1e-3  # an exponent by which a thousand times as much lowers a term by less than 1 %
IN_STEP = 0.999  # a correlation of sizes and lengths above which they are one quantity
SEEN = 1e-4  # the share of the loss by which a term has to fall among the points for its exponent to mean something
WIDE = 1e3  # times that the upper end of an interval is the lower one, above which the points say nothing of a constant
NAMES = ("e", "a", "b", "alpha", "beta")
LOWEST, AMONG = 24, 5  # starts that are followed to their end; different sizes that a fit needs


@dataclass(frozen=True)
class Points:
    """What was measured: N parameters, D tokens, the loss in nats; one row each.

    `times`: how often each counts, for every start of a search, or for each its own (starts, points).
    """

    n: Array
    d: Array
    loss: Array
    times: Array | float = 1.0


@dataclass(frozen=True)
class Fit:
    """A fitted law, the interval of 95 % of the resampled fits, by constant, and how far it misses the points.

    `undetermined`: constants about which the points say next to nothing; an `e` of 0 is one of no weight among them.
    """

    law: Law
    intervals: dict[str, tuple[float, float]]
    rms: float
    n_points: int
    undetermined: tuple[str, ...] = ()


def fit(points: Points, *, resamples: int = 100, seed: int = 0) -> Fit:
    """Fit L(N, D) = E + A / N^α + B / D^β. Raises DataError where the points cannot determine five constants."""
    _check(points)
    starts = _grid()
    starts = starts[np.argsort(_objective(starts, points)[0])[:LOWEST]]
    found = _minimise(starts, points)
    best = found[np.argmin(_objective(found, points)[0])]
    _check_falls(best, points)
    least = SEEN * points.loss.min()
    resampled = [_constants(x, least) for x in _resampled(best, points, resamples, seed)]
    intervals: dict[str, tuple[float, float]] = {}
    if resampled:
        low, high = np.percentile(np.array(resampled), [2.5, 97.5], axis=0)
        intervals = {name: (float(low[i]), float(high[i])) for i, name in enumerate(NAMES)}
    e, a, b, alpha, beta = map(float, _constants(best, least))
    law = Law("fitted", e, a, b, alpha, beta, f"{len(points.n)} points of your own")
    missed = np.log(points.loss) - _predicted(best[None], points)[0][0]
    vague = tuple(n for n in NAMES if (n == "e" and e == 0) or (n in intervals and _says_nothing(*intervals[n])))
    return Fit(law, intervals, float(np.sqrt(np.mean(missed**2))), len(points.n), vague)


def _resampled(best: Array, points: Points, resamples: int, seed: int) -> list[Array]:
    """The fit of each resample, as how often it has each point; all of them are searched at once.

    From an E of nothing no step leads back, so they start also from the grid: for each E there, where it is lowest.
    """
    generator, n_points = np.random.default_rng(seed), len(points.n)
    grid = _grid()
    starts, times = [], []
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(0, n_points, n_points), minlength=n_points).astype(np.float64)
        values = _objective(grid, replace(points, times=drawn))[0]
        lowest = [grid[np.argmin(np.where(grid[:, 2] == e, values, np.inf))] for e in GRID[2]]
        starts += [best, *lowest]
        times += [drawn] * (1 + len(lowest))
    if not starts:
        return []
    drawn_all = replace(points, times=np.stack(times))
    found = _minimise(np.stack(starts), drawn_all)
    values = _objective(found, drawn_all)[0].reshape(resamples, -1)
    each = found.reshape(resamples, -1, found.shape[1])
    return [rows[np.argmin(value)] for rows, value in zip(each, values, strict=True)]


def _says_nothing(low: float, high: float) -> bool:
    return low <= 0 or high > WIDE * low


def points(rows: Sequence[tuple[float, float, float]]) -> Points:
    """Rows (N, D, loss) as arrays."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Points(table[:, 0], table[:, 1], table[:, 2])


def _check(points: Points) -> None:
    numbers = np.stack([points.n, points.d, points.loss])
    if not np.isfinite(numbers).all() or (numbers <= 0).any():
        raise DataError("a scaling law needs positive numbers of parameters and tokens, and positive losses.")
    sizes, lengths = len(np.unique(points.n)), len(np.unique(points.d))
    if len(points.n) < AMONG or sizes < 3 or lengths < 3:
        raise DataError(
            "five constants take at least 5 runs, of 3 model sizes and 3 numbers of tokens. "
            f"Here: {len(points.n)}, of {sizes} and {lengths}."
        )
    if abs(np.corrcoef(np.log(points.n), np.log(points.d))[0, 1]) > IN_STEP:
        raise DataError(
            "in these points tokens grow in step with parameters, so that what either does to the loss cannot be told "
            "apart. Add runs of one size with other numbers of tokens."
        )


def _check_falls(x: Array, points: Points) -> None:
    """Both terms fall among the points: neither flat (α of nothing) nor vanished (A of nothing, and then any α)."""
    alpha, beta, _, a, b = map(float, x)
    for exponent, scale, amounts, what in ((alpha, a, points.n, "parameters"), (beta, b, points.d, "tokens")):
        at_least, at_most = (np.exp(scale - exponent * np.log(amount)) for amount in (amounts.min(), amounts.max()))
        if exponent <= FLAT or at_least - at_most <= SEEN * points.loss.min():
            raise DataError(
                f"in these points the loss does not fall with more {what} (exponent {exponent:.2g} of a term of "
                f"{at_least:.2g}), so no law of this form holds for them. Give runs of more different sizes "
                "and lengths."
            )


def _grid() -> Array:
    return np.stack(np.meshgrid(*GRID, indexing="ij"), axis=-1).reshape(-1, 5)  # α, β, e, a, b


def _constants(x: Array, least: float) -> Array:
    """E, A, B, α, β of α, β, e, a, b; an E below `least` is 0, the end to which it was falling."""
    e, a, b = np.exp(x[2:5])
    return np.array([e if e >= least else 0.0, a, b, *x[:2]])


def _predicted(x: Array, points: Points) -> tuple[Array, Array]:
    """The logarithm of the loss (starts, points), and each of the three terms' share of it (3, starts, points)."""
    alpha, beta, e, a, b = (x[:, i, None] for i in range(5))
    terms = np.stack(
        [a - alpha * np.log(points.n), b - beta * np.log(points.d), np.broadcast_to(e, (len(x), len(points.n)))]
    )
    top = terms.max(axis=0)
    shares = np.exp(terms - top)
    total = shares.sum(axis=0)
    return top + np.log(total), shares / total


def _objective(x: Array, points: Points) -> tuple[Array, Array]:
    """The Huber loss of each start, and its gradient: (starts,), (starts, 5)."""
    predicted, shares = _predicted(x, points)
    r = predicted - np.log(points.loss)
    inside = np.abs(r) <= DELTA
    value = (points.times * np.where(inside, 0.5 * r**2, DELTA * (np.abs(r) - 0.5 * DELTA))).sum(axis=1)
    slope = points.times * np.where(inside, r, DELTA * np.sign(r))
    by_a, by_b, by_e = ((slope * share).sum(axis=1) for share in shares)
    by_alpha = -(slope * shares[0] * np.log(points.n)).sum(axis=1)
    by_beta = -(slope * shares[1] * np.log(points.d)).sum(axis=1)
    return value, np.stack([by_alpha, by_beta, by_e, by_a, by_b], axis=1)


def _minimise(x: Array, points: Points) -> Array:
    """L-BFGS from each row of x at once (Nocedal and Wright, "Numerical optimization", algorithms 7.4 and 7.5)."""
    value, gradient = _objective(x, points)
    past: list[tuple[Array, Array, Array]] = []  # steps, changes of the gradient, 1 / their product (0: left out)
    for _ in range(STEPS):
        direction = -_applied(gradient, past)
        descent = (direction * gradient).sum(axis=1)
        away = descent >= 0
        direction[away] = -gradient[away]
        descent = (direction * gradient).sum(axis=1)
        new_x, new_value, new_gradient = _searched(x, value, direction, descent, points)
        step, change = new_x - x, new_gradient - gradient
        product = (step * change).sum(axis=1)
        curved = product > 1e-14 * np.maximum((change**2).sum(axis=1), 1e-300)
        past = [*past[-MEMORY + 1 :], (step, change, np.where(curved, 1.0 / np.where(curved, product, 1.0), 0.0))]
        settled = np.abs(value - new_value).max() < SETTLED
        x, value, gradient = new_x, new_value, new_gradient
        if settled:
            break
    return x


def _applied(gradient: Array, past: list[tuple[Array, Array, Array]]) -> Array:
    """The inverse Hessian, as the past steps show it, times the gradient."""
    q, alphas = gradient.copy(), []
    for step, change, rho in reversed(past):
        alpha = rho * (step * q).sum(axis=1)
        q -= alpha[:, None] * change
        alphas.append(alpha)
    if past:
        step, change, rho = past[-1]
        scale = (step * change).sum(axis=1) / np.maximum((change**2).sum(axis=1), 1e-300)
        q *= np.where(rho > 0, scale, 1.0)[:, None]
    for (step, change, rho), alpha in zip(past, reversed(alphas), strict=True):
        q += (alpha - rho * (change * q).sum(axis=1))[:, None] * step
    return q


def _searched(x: Array, value: Array, direction: Array, descent: Array, points: Points) -> tuple[Array, Array, Array]:
    """A step along each direction that is short enough to lower the value (Armijo's rule); none where none is."""
    length = np.minimum(1.0, 1.0 / np.maximum(np.abs(direction).max(axis=1), 1e-300))
    done = np.zeros(len(x), dtype=bool)
    for _ in range(40):
        new_value, _gradient = _objective(x + length[:, None] * direction, points)
        done = new_value <= value + 1e-4 * length * descent
        if (done | (-length * descent < SETTLED)).all():
            break
        length = np.where(done, length, length / 2)
    new_x = x + np.where(done, length, 0.0)[:, None] * direction
    new_value, gradient = _objective(new_x, points)
    return new_x, new_value, gradient
