"""Position biases: what is added to the score of a query at i and a key at j because of i - j alone."""

import math

import torch
from torch import Tensor, nn

from onehop.config.position import T5Config
from onehop.parts.constant import Constant, fresh_normal
from onehop.parts.scheme import PositionScheme


class Alibi(PositionScheme):
    """-slope · |i - j|, with one fixed slope per head: (B | 1, T), (B | 1, S) -> (B | 1, H, T, S) float32.

    Press et al. 2021, arXiv:2108.12409, section 3. Nothing is learned, and no dtype of the model rounds the slopes.
    `scale` multiplies all.
    """

    biases = True
    relative = True

    def __init__(self, n_heads: int, *, max_exponent: float = 8.0, scale: float = 1.0):
        super().__init__()
        self.n_heads = n_heads
        self.slopes = alibi_slopes(n_heads, max_exponent)
        self.scale = scale
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device="cpu").view(-1, 1, 1)
        self._minus = Constant(-scale * slopes)  # (H, 1, 1)

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        # float32 holds every position below 2^24, and every difference of two of them.
        i, j = q_at.to(torch.float32), k_at.to(torch.float32)
        distance = (i.unsqueeze(-1) - j.unsqueeze(-2)).abs_()  # (B, T, S)
        return distance.unsqueeze(1) * self._minus.on(q_at.device)  # (B, H, T, S)

    def extra_repr(self) -> str:
        return f"{self.n_heads}"


class RoundedAlibi(Alibi):
    """-|r(i) - r(j)| · scale, where r(i) is slope · i with slope, position and product in bfloat16; shapes as `Alibi`.

    What Falcon's release computes: it rounds each key's slope · j and lets the softmax take away what all keys share.
    """

    relative = False

    def __init__(self, n_heads: int, *, max_exponent: float = 8.0, scale: float = 1.0):
        super().__init__(n_heads, max_exponent=max_exponent, scale=scale)
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device="cpu").view(-1, 1)
        self._rounded = Constant(slopes.to(torch.bfloat16))  # (H, 1)

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        slopes = self._rounded.on(q_at.device)
        i, j = (slopes * at.to(torch.bfloat16).unsqueeze(1) for at in (q_at, k_at))  # (B, H, T), (B, H, S)
        return (i.float().unsqueeze(-1) - j.float().unsqueeze(-2)).abs_() * -self.scale  # (B, H, T, S)


class T5Bias(PositionScheme):
    """A learned number for each head and bucket of j - i: (B | 1, T), (B | 1, S) -> (B | 1, H, T, S).

    Raffel et al. 2019, arXiv:1910.10683, section 2.1; buckets as in the release. `table` is (n_buckets, H).
    """

    biases = True
    relative = True

    def __init__(self, cfg: T5Config, n_heads: int, *, bidirectional: bool):
        super().__init__()
        self.reach = cfg.max_distance
        self.table = nn.Parameter(torch.empty(cfg.n_buckets, n_heads))
        buckets = [
            t5_bucket(d, n_buckets=cfg.n_buckets, max_distance=cfg.max_distance, bidirectional=bidirectional)
            for d in range(-self.reach, self.reach + 1)
        ]
        self._buckets = Constant(torch.tensor(buckets, device="cpu"))  # (2 · reach + 1,)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh biases, small beside the scores."""
        fresh_normal(self.table)

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        by_distance = self.table[self._buckets.on(q_at.device)].t()  # (H, 2 · reach + 1)
        distance = k_at.unsqueeze(-2) - q_at.unsqueeze(-1)  # (B, T, S)
        index = distance.clamp_(-self.reach, self.reach).add_(self.reach)
        bias = by_distance.index_select(1, index.flatten())  # (H, B · T · S)
        return bias.unflatten(1, index.shape).transpose(0, 1)  # (B, H, T, S)

    def extra_repr(self) -> str:
        return f"{self.table.size(0)} buckets, {self.table.size(1)} heads, up to {self.reach}"


def alibi_slopes(n_heads: int, max_exponent: float = 8.0) -> list[float]:
    """Slopes 2^(-8h/n), h = 1 … n, for a power of two n; else of the next lower power, then every other of its double.

    Press et al. 2021, arXiv:2108.12409, section 3, and `get_slopes` of its release, which published checkpoints follow;
    other exponents than 8 are MPT's (MosaicML 2023).
    """
    n = 2 ** int(math.log2(n_heads))
    slopes = [2.0 ** (-max_exponent * h / n) for h in range(1, n + 1)]
    between = [2.0 ** (-max_exponent / 2 * h / n) for h in range(1, 2 * n + 1, 2)]
    return slopes + between[: n_heads - n]


def t5_bucket(distance: int, *, n_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of distance = key position - query position, in exact arithmetic.

    Half the buckets of a side hold one distance each, the rest grow geometrically up to max_distance, and the last
    takes all beyond. Bidirectional: the upper half of the table is for later keys; else later keys count as distance 0.
    """
    first, side = 0, n_buckets
    if bidirectional:
        side = n_buckets // 2
        first, n = (side if distance > 0 else 0), abs(distance)
    else:
        n = max(-distance, 0)
    exact = side // 2
    if n < exact:
        return first + n
    steps = side - exact
    # floor(log(n / exact) / log(max_distance / exact) · steps), compared as powers of whole numbers
    reached = sum(n**steps * exact**t >= max_distance**t * exact**steps for t in range(1, steps))
    return first + exact + reached
