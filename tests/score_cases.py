"""Random attention problems, small enough that every kernel solves them in milliseconds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from onehop.config import AttentionConfig, T5Config
from onehop.config import position as config
from onehop.parts.bias import RoundedAlibi, T5Bias
from onehop.parts.dropout import DropKey
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.position import POSITIONS, PositionScheme
from onehop.parts.score_rule import ScoreRule
from onehop.parts.sight import Sees, Sight

SIGHTS = [
    Sees("causal"),
    Sees("all"),
    Sees("prefix"),
    Sees("causal", window=1),
    Sees("causal", window=3),
    Sees("all", window=2),
    Sees("prefix", window=4),
]


class Hiding(nn.Module):
    """A bias that hides every third key altogether, by -inf."""

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        hidden = (k_at % 3 == 1).unsqueeze(1).expand(-1, q_at.size(1), -1)  # (B, T, S)
        return torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf).unsqueeze(1)


@dataclass
class Problem:
    """One attention problem with all tensors that want a gradient."""

    q: Tensor
    keys: Keys
    rule: ScoreRule
    sight: Sight

    @property
    def leaves(self) -> list[Tensor]:
        learned = list(self.rule.bias.parameters()) if self.rule.bias is not None else []
        return [self.q, self.keys.k, self.keys.v, *([] if self.rule.sinks is None else [self.rule.sinks]), *learned]

    def solve(self, kernel: Callable[..., Tensor], **options: object) -> list[Tensor]:
        """The output and the gradients of all leaves, for a fixed gradient of the output."""
        y = kernel(self.q, self.keys, self.rule, self.sight, **options)
        dy = torch.sin(torch.arange(y.numel(), dtype=torch.float64) + 1).view(y.shape).to(y.dtype)
        return [y.detach(), *torch.autograd.grad(y, self.leaves, dy, allow_unused=True, materialize_grads=True)]


def rand(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that want a gradient."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype).requires_grad_()


def problem(
    b: int = 2,
    t: int = 5,
    s: int = 7,
    *,
    heads: int = 4,
    n_kv: int = 2,
    d: int = 3,
    dv: int = 3,
    seed: int = 0,
    sees: Sees = SIGHTS[0],
    layout: str = "run",
    bias: str = "none",
    softcap: float | None = None,
    sinks: bool = False,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """A problem in which the queries are the last of the keys' places (or the first, where there are more queries)."""
    q_at, k_at = places(layout, b, t, s, seed=seed)
    prefix = torch.arange(b) + 2 if sees.kind == "prefix" else None
    q = rand(b, t, heads, d, seed=3 * seed + 1, dtype=dtype)
    k = rand(b, s, n_kv, d, seed=3 * seed + 2, dtype=dtype)
    v = rand(b, s, n_kv, dv, seed=3 * seed + 3, dtype=dtype)
    rule = ScoreRule(
        d**-0.5,
        softcap=softcap,
        bias=make_bias(bias, heads, dtype),
        sinks=rand(heads, seed=seed + 2, dtype=dtype) if sinks else None,
        dropout=dropout,
    ).dropping(DropKey.of(seed, 3))
    return Problem(q, Keys(k, v, k_at), rule, Sight(sees, q_at, k_at, prefix=prefix))


def scheme(kind: str, heads: int) -> PositionScheme:
    """A position scheme as a config that says nothing else would build it."""
    return POSITIONS.get(kind)(config.POSITIONS.get(kind)(), AttentionConfig(n_heads=heads, n_kv_heads=heads, d_head=4))


BIASES = [kind for kind in POSITIONS.names() if scheme(kind, 4).biases]


def make_bias(name: str, heads: int, dtype: torch.dtype) -> nn.Module | None:
    if name in ("none", "hiding"):
        return Hiding() if name == "hiding" else None
    if name == "rounded alibi":
        return RoundedAlibi(heads, max_exponent=7.0)  # slopes that bfloat16 rounds
    if name == "t5":  # of few buckets, whose numbers are not small
        table = T5Bias(T5Config(n_buckets=6, max_distance=5), heads, bidirectional=True).to(dtype)
        table.table.data.copy_(torch.linspace(-1, 1, 6 * heads).view(6, heads))
        return table
    return scheme(name, heads).to(dtype)


def places(layout: str, b: int, t: int, s: int, *, seed: int = 0) -> tuple[Places, Places]:
    """Where t queries and s keys stand: in a run, padded here and there, or as several documents in one row."""
    n = max(t, s)
    if layout == "run":
        return Places.run(n - t, t), Places.run(n - s, s)
    at = torch.arange(n).expand(b, n).clone()
    doc = None
    if layout == "padded":
        at = at - torch.arange(b).unsqueeze(1)  # row i is padded by i places on the left
        holes = torch.rand(b, n, generator=torch.Generator().manual_seed(seed)) < 0.3
        at = at.masked_fill(holes, -1).clamp_min(-1)
    else:
        doc = torch.div(torch.arange(n).expand(b, n) + torch.arange(b).unsqueeze(1), 3, rounding_mode="floor")
        at = torch.arange(n).expand(b, n) - torch.stack([torch.searchsorted(row, row) for row in doc])
    cut = (slice(n - t, n), slice(n - s, n))
    q_at, k_at = (Places(at[:, c].contiguous(), None if doc is None else doc[:, c].contiguous()) for c in cut)
    return q_at, k_at


problems = st.builds(
    problem,
    b=st.integers(1, 3),
    t=st.integers(1, 9),
    s=st.integers(1, 9),
    heads=st.sampled_from([4]),
    n_kv=st.sampled_from([1, 2, 4]),
    d=st.integers(1, 4),
    dv=st.integers(1, 4),
    seed=st.integers(0, 99),
    sees=st.sampled_from(SIGHTS),
    layout=st.sampled_from(["run", "padded", "documents"]),
    bias=st.sampled_from(["none", *BIASES, "rounded alibi", "hiding"]),
    softcap=st.sampled_from([None, 1.5]),
    sinks=st.booleans(),
    dropout=st.sampled_from([0.0, 0.4]),
)
