"""What a step of Muon takes: products that make matrices orthogonal, and memory for as many as are made so at once."""

from collections import Counter
from collections.abc import Iterator, Sequence

from onehop.cost.activations import WIDE
from onehop.cost.weights import Weight

NEWTON_SCHULZ = 5  # rounds
TOGETHER = 1 << 20  # numbers up to which matrices of one shape go through the rounds as a stack


def hidden_matrices(weights: Sequence[Weight]) -> list[Weight]:
    """What Muon moves: matrices between hidden states, and stacks of them (`training/roles.py`)."""
    matrices = [w for w in weights if w.layer is not None and w.rows != "none"]
    return [w for w in matrices if len(w.shape) in (2, 3) and min(w.shape[-2:]) > 1]


def moved(weights: Sequence[Weight]) -> Iterator[tuple[int, int, int]]:
    """The shorter and longer side of its matrices, and how many there are."""
    for w in hidden_matrices(weights):
        short, long = sorted(w.shape[-2:])
        yield short, long, w.size // (short * long)


def muon_flops(weights: Sequence[Weight]) -> float:
    """FLOPs by which Muon orthogonalises all hidden matrices (Jordan et al. 2024)."""
    return sum(n * orthogonal_flops(short, long) for short, long, n in moved(weights))


def orthogonal_flops(short: int, long: int) -> float:
    """FLOPs by which a matrix X (short, long) is made orthogonal: rounds of X·Xᵀ, its square, and a product with X."""
    return NEWTON_SCHULZ * (4.0 * short**2 * long + 2.0 * short**3)


def at_once(short: int, long: int) -> int:
    """How many matrices of one shape go through the rounds as one stack."""
    return max(1, TOGETHER // (short * long))


def muon_working(weights: Sequence[Weight], number: int) -> float:
    """Bytes at the peak of its step, with `number` bytes per number of its products.

    Of a stack they are the updates, in float32, one by one and laid together, then the matrices, their successors and
    two squares of their shorter sides.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for short, long, n in moved(weights):
        counts[short, long] += n
    most = 0.0
    for (short, long), n in counts.items():
        together, size = min(n, at_once(short, long)), short * long
        before, rounds = 2 * WIDE * size, 2 * number * (size + short**2)
        most = max(most, together * float(max(before, rounds)))
    return most
