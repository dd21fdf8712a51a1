"""Bytes that attention moves between a device's memory and its chip: as it is defined, and tile by tile.

FlashAttention's point (Dao et al. 2022, arXiv:2205.14135, section 2.2, algorithm 0, and theorem 2): the definition
writes and reads T × T scores, tiles keep them on the chip and read keys and values once for each run of queries.
"""

from dataclasses import dataclass

from onehop.config.attention import AttentionConfig
from onehop.config.model import ModelConfig, StackConfig

ON_CHIP = 192 * 1024  # bytes beside a GPU's cores: A100 (NVIDIA A100 whitepaper 2020, table 4), as in the paper


@dataclass(frozen=True)
class Shape:
    """One layer's attention over T tokens: heads, widths, bytes of a number."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    length: int
    size: float

    @classmethod
    def of(cls, a: AttentionConfig, length: int, size: float) -> "Shape":
        """The shape of a layer's attention."""
        return cls(a.n_heads, a.n_kv_heads, a.d_head, length, size)


def plain_bytes(s: Shape) -> float:
    """Queries and keys are read, scores written; scores read, weights written; weights and values read, output written.

    (Algorithm 0: four passes over T × T for each head, and once over q, k, v and the output.)
    """
    t = s.length
    rows = (2 * s.n_heads + 2 * s.n_kv_heads) * s.d_head  # q, output, k, v
    return s.size * (rows * t + 4.0 * s.n_heads * t * t)


def tiled_bytes(s: Shape, on_chip: float = ON_CHIP) -> float:
    """Queries are read and outputs written once; keys and values for each run of queries that fits on the chip."""
    runs = -(-s.length // queries_on_chip(s, on_chip))
    outer = 2 * s.n_heads * s.d_head * s.length
    # the heads of a group read their keys one after the other: each has runs of its own
    inner = 2 * s.n_heads * s.d_head * s.length * runs
    return s.size * (outer + inner) + 4.0 * s.n_heads * s.length  # and the softmax's log-sums, in float32


def queries_on_chip(s: Shape, on_chip: float = ON_CHIP) -> int:
    """Rows of a tile: q, k, v and the output of so many tokens fill the chip (algorithm 1, line 1: M / 4d)."""
    return max(1, int(on_chip / s.size) // (4 * s.d_head))


def crossover(a: AttentionConfig, size: float, on_chip: float = ON_CHIP, *, times: float = 2.0) -> int:
    """The shortest text, in tokens, for which the definition moves at least `times` the bytes that tiles do."""
    low, high = 0, 1
    while _ratio(a, high, size, on_chip) < times:
        low, high = high, high * 2
        if high > 1 << 40:
            return high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _ratio(a, middle, size, on_chip) >= times else (middle, high)
    return high


def _ratio(a: AttentionConfig, length: int, size: float, on_chip: float) -> float:
    shape = Shape.of(a, length, size)
    return plain_bytes(shape) / tiled_bytes(shape, on_chip)


def attention_bytes(config: ModelConfig, length: int, size: float) -> tuple[float, float]:
    """Bytes that all layers' attention moves for one text of `length` tokens: by definition, and by tiles."""
    shapes = [Shape.of(block.attention, length, size) for block in config.layers()]
    return sum(map(plain_bytes, shapes)), sum(map(tiled_bytes, shapes))


def least_bytes(stack: StackConfig, length: int, size: float) -> float:
    """Bytes that no attention can do without: q, k, v and the output once (a large cache serves tiles again)."""
    shapes = [Shape.of(block.attention, length, size) for block in stack.layers()]
    return sum(s.size * 2 * (s.n_heads + s.n_kv_heads) * s.d_head * s.length for s in shapes)
