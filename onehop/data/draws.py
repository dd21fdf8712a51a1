"""Random numbers that are a function of what they are for: the same on every machine, in any order."""

import itertools
from collections.abc import Iterator

import numpy as np

_BLOCK = 1 << 12


def uniform(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Numbers (n,) -> floats in [0, 1) (n,) that look random and depend on each number and the seed alone.

    Source: Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64's mixing function).
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        mixed = _mix(numbers.astype(np.uint64) + _mix(np.array([seed % (1 << 64)], dtype=np.uint64)))
    return (mixed >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draws(seed: int) -> Iterator[float]:
    """uniform(0), uniform(1), … without end."""
    for first in itertools.count(0, _BLOCK):
        yield from uniform(np.arange(first, first + _BLOCK), seed).tolist()


def shuffled(n: int, seed: int) -> np.ndarray:
    """The numbers 0..n-1 (n,) in an order that depends on the seed alone."""
    return np.argsort(uniform(np.arange(n), seed), kind="stable")
