"""Bytes that attention moves between a device's memory and its chip: as it is defined, and tile by tile.

FlashAttention's point (Dao et al. 2022, arXiv:2205.14135, section 2.2, algorithm 0, and theorem 2): the definition
writes and reads T × S scores, tiles keep them on the chip and read keys and values once for each run of queries. Tiles
that lie beyond a window on either side are not read (ibid., section 3.3: a block-sparse mask); a causal mask alone
leaves none out, as in its algorithm 1.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from onehop.config.attention import AttentionConfig
from onehop.config.model import ModelConfig, StackConfig

ON_CHIP = 192 * 1024  # bytes beside a GPU's cores: A100 (NVIDIA A100 whitepaper 2020, table 4), as in the paper
LONGEST = 1 << 40  # tokens: what has not become true of a text up to here never does


@dataclass(frozen=True)
class Shape:
    """One layer's attention of T queries over S keys: heads, widths, bytes of a number.

    `keys` None: as many as queries. `window`: keys at a distance below it are seen, None: all.
    """

    n_heads: int
    n_kv_heads: int
    d_head: int
    length: int
    size: float
    keys: int | None = None
    window: int | None = None

    @classmethod
    def of(cls, a: AttentionConfig, length: int, size: float) -> "Shape":
        """The shape of a layer's attention of a text over itself."""
        return cls(a.n_heads, a.n_kv_heads, a.d_head, length, size, window=a.window)

    @classmethod
    def cross(cls, a: AttentionConfig, length: int, source: int, size: float) -> "Shape":
        """The shape of a layer's attention of a text over a source."""
        return cls(a.n_heads, a.n_kv_heads, a.d_head, length, size, keys=source)

    @property
    def n_keys(self) -> int:
        """S."""
        return self.length if self.keys is None else self.keys


def plain_bytes(s: Shape) -> float:
    """Queries and keys are read, scores written; scores read, weights written; weights and values read, output written.

    (Algorithm 0: four passes over T × S for each head, hidden pairs included, and once over q, k, v and the output.)
    """
    rows = (2 * s.n_heads * s.length + 2 * s.n_kv_heads * s.n_keys) * s.d_head  # q and output, k and v
    return s.size * (rows + 4.0 * s.n_heads * s.length * s.n_keys)


def tiled_bytes(s: Shape, on_chip: float = ON_CHIP) -> float:
    """Queries are read and outputs written once; keys and values for each run of queries that fits on the chip."""
    outer = 2 * s.n_heads * s.d_head * s.length
    # the heads of a group read their keys one after the other: each has runs of its own
    inner = 2 * s.n_heads * s.d_head * _keys_read(s, queries_on_chip(s, on_chip))
    return s.size * (outer + inner) + 4.0 * s.n_heads * s.length  # and the softmax's log-sums, in float32


def _keys_read(s: Shape, rows: int) -> int:
    """Keys that all runs of `rows` queries read, in tiles of as many: of a window those tiles that it reaches into."""
    runs = -(-s.length // rows)
    if s.window is None:
        return runs * s.n_keys
    reach = min(-(-(s.window - 1) // rows), runs - 1)  # tiles on either side of a run's own
    tiles = runs * (2 * reach + 1) - reach * (reach + 1)  # the first runs and the last have fewer on one side
    return tiles * rows - (reach + 1) * (runs * rows - s.length)  # the last tile is not full


def queries_on_chip(s: Shape, on_chip: float = ON_CHIP) -> int:
    """Rows of a tile: q, k, v and the output of so many tokens fill the chip (algorithm 1, line 1: M / 4d)."""
    return max(1, int(on_chip / s.size) // (4 * s.d_head))


def crossover(config: ModelConfig, size: float, *, times: float = 2.0) -> int | None:
    """The text, in tokens, from which on the definition moves at least `times` the bytes that tiles do; None: never.

    What tiles save grows with the text, but falls where one token more begins another run of queries. So the last run
    that begins below `times` is looked for, and in it the text that reaches them.
    """
    found = _attentions(config)

    def less(length: int) -> bool:
        plain, tiled = _bytes(found, length, size)
        return plain < times * tiled

    first = 1
    for rows in {queries_on_chip(Shape.of(a, 1, size)) for a, _ in found}:
        if less(LONGEST * rows + 1):
            return None
        first = max(first, 1 + rows * (_last(lambda run, rows=rows: less(run * rows + 1), LONGEST)))  # type: ignore[misc]
    return first + 1 + _last(lambda more: less(first + more), LONGEST)


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number from 0 on for which something holds that holds for 0, ends once, and does not hold for `most`."""
    low, high = 0, most
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def attention_bytes(config: ModelConfig, length: int, size: float) -> tuple[float, float]:
    """Bytes that all attention moves for one text of `length` tokens: by definition, and by tiles.

    An encoder-decoder's: of its encoder over a source of as many tokens, of its decoder, and from that to the source.
    """
    return _bytes(_attentions(config), length, size)


def _attentions(config: ModelConfig) -> Counter[tuple[AttentionConfig, bool]]:
    """The different attentions of a model, whether they are cross-attention, and how many layers have each."""
    blocks = [*config.layers(), *(config.encoder.layers() if config.encoder is not None else ())]
    crossed = Counter((block.cross, True) for block in blocks if block.cross is not None)
    return Counter((block.attention, False) for block in blocks) + crossed


def _bytes(found: Counter[tuple[AttentionConfig, bool]], length: int, size: float) -> tuple[float, float]:
    plain = tiled = 0.0
    for (a, crosses), n in found.items():
        shape = Shape.cross(a, length, length, size) if crosses else Shape.of(a, length, size)
        plain, tiled = plain + n * plain_bytes(shape), tiled + n * tiled_bytes(shape)
    return plain, tiled


def least_bytes(stack: StackConfig, length: int, size: float) -> float:
    """Bytes that no attention can do without: q, k, v and the output once (a large cache serves tiles again)."""
    shapes = [Shape.of(block.attention, length, size) for block in stack.layers()]
    return sum(s.size * 2 * (s.n_heads + s.n_kv_heads) * s.d_head * s.length for s in shapes)
