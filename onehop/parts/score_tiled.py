"""Attention over tiles: the same numbers as `plain`, forward and backward, without ever holding T × S of anything.

FlashAttention, Dao et al. 2022, arXiv:2205.14135: algorithm 1 is `_forward`, algorithm 4 is `_Backward`; that the
division waits for the end and only the log-sum-exp is kept is FlashAttention-2, arXiv:2307.08691, section 3.1. The
softmax of a row is built tile by tile: a running maximum, a running sum, and an output that shrinks whenever a larger
score turns up. The backward pass computes each tile of weights again. Tiles that nobody may see are never computed.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onehop.base.errors import OnehopError
from onehop.parts.keys import Keys
from onehop.parts.score_bias import TiledBias, tiled_bias
from onehop.parts.score_plain import folded, kept, stacked, wide
from onehop.parts.score_rule import ScoreRule, learned
from onehop.parts.sight import Sight


def tiled(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, tile: tuple[int, int] | None = None) -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), for the rules of which `why_not_tiled` has nothing to say.

    16-bit inputs are computed in float32. Memory beside inputs and outputs: a float32 copy of q and y, and one tile.
    """
    table = learned(rule.bias)
    b, t, heads, _ = q.shape
    bias = None if rule.bias is None else tiled_bias(rule.bias, sight)
    tiles = _Tiles(rule, sight, tile or tile_for(t, b * heads), (b, heads), bias)
    if torch.is_grad_enabled() and keys.whole:  # what lies in pieces is a cache, and nobody learns from it
        k, v = keys.dense()
        if table or any(x is not None and x.requires_grad for x in (q, k, v, rule.sinks)):
            out: Tensor = _Tiled.apply(tiles, tuple(table), q, k, v, rule.sinks, *table.values())
            return out
    with torch.no_grad():
        return _forward(tiles, q, keys)[0]


def tile_for(t: int, heads: int) -> tuple[int, int]:
    """Queries and keys of a tile, for t queries and this many heads in all: the passes over it must stay in a cache."""
    rows, area = (128, 128 * 256) if heads <= 16 else (64, 64 * 128)
    rows = min(rows, t) or 1
    return rows, min(area // rows, 4096)


def why_not_tiled(rule: ScoreRule) -> str | None:
    """What of the rule cannot be computed tile by tile; None if all of it can."""
    return None if rule.change is None else "a score rule of your own is known to the plain kernel only"


@dataclass(frozen=True, eq=False)
class _Tiles:
    """How scores become weights in one tile. Its rows lie as (B·K, G·t, …): a group of heads shares its keys."""

    rule: ScoreRule
    sight: Sight
    tile: tuple[int, int]
    shape: tuple[int, int]  # B, H
    bias: TiledBias | None
    rooms: dict[str, Tensor] = field(default_factory=dict)

    def runs(self) -> list[slice]:
        """Runs of queries."""
        t, step = self.sight.q.n, self.tile[0]
        return [slice(i, min(i + step, t)) for i in range(0, t, step)]

    def product(self, q: Tensor, k: Tensor, room: str) -> Tensor:
        """q·kᵀ, (B·K, G·t, D), (B·K, s, D) -> (B·K, G·t, s), in memory that the next tile uses again."""
        return torch.bmm(q, k.mT, out=self.space(q, k, room))

    def space(self, q: Tensor, k: Tensor, room: str) -> Tensor:
        """Memory for a tile of scores: new memory for each would cost as much time as the arithmetic."""
        n = q.size(0) * q.size(1) * k.size(1)
        if room not in self.rooms or self.rooms[room].numel() < n:
            self.rooms[room] = q.new_empty(n)
        return self.rooms[room][:n].view(q.size(0), q.size(1), k.size(1))

    def scores(self, q: Tensor, k: Tensor, hidden: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Masked scores (B·K, G·t, s) of scaled queries; with a softcap, beside them tanh of the bare ones."""
        bent = None
        if self.rule.softcap is None and bias is not None:  # the product is added to the bias: one pass less
            s = self.space(q, k, "scores")
            self.by_head(s).copy_(bias)
            s.baddbmm_(q, k.mT)
        else:
            s = self.product(q, k, "scores")
            if self.rule.softcap is not None:
                bent = s.div_(self.rule.softcap).tanh_()
                s = bent * self.rule.softcap
            if bias is not None:
                self.by_head(s).add_(bias)
        if hidden is not None:
            self.by_head(s).add_(hidden)
        return s, bent

    def hidden(self, rows: slice, cols: slice, like: Tensor) -> Tensor | None:
        """0 or -inf to add to a tile's scores, (B | 1, H | 1, t, s): vectorised, and small where heads share it."""
        mask = self.sight.tile(rows, cols)
        if mask is None:
            return None
        mask = mask.flip(-1) if self.reverse else mask
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -torch.inf)

    @property
    def reverse(self) -> bool:
        """Whether the keys of a tile stand in reverse order."""
        return self.bias is not None and self.bias.reverse

    def close(self, x: Tensor) -> Tensor:
        """A run of keys or values (B, s, K, D) as (B·K, s, D), close together and in the type of sums."""
        x = wide(stacked(x))
        return x.flip(1) if self.reverse else x.contiguous()

    def apart(self, x: Tensor) -> Tensor:
        """(B·K, s, D) -> (B, s, K, D), undoing `close`."""
        x = x.flip(1) if self.reverse else x
        return x.unflatten(0, (self.shape[0], -1)).transpose(1, 2)

    def keep(self, rows: slice, cols: slice, like: Tensor) -> Tensor:
        """What dropout multiplies the weights of a tile by, 0 or 1 / (1 - rate), (B, H, t, s)."""
        keep = kept(self.rule, self.by_head(like).shape, rows, cols)
        keep = keep.flip(-1) if self.reverse else keep
        return keep.to(like.dtype).div_(1.0 - self.rule.dropout)

    def by_head(self, x: Tensor) -> Tensor:
        """(B·K, G·t, …) seen as (B, H, t, …)."""
        b, h = self.shape
        return x.view(b, h, -1, x.size(-1))

    def by_token(self, x: Tensor) -> Tensor:
        """(B·K, G·t, D) seen as (B, t, H, D)."""
        return self.by_head(x).transpose(1, 2)

    def sinks(self, like: Tensor) -> Tensor:
        """The sink of each row, (B·K, G·t, 1), in memory of its own: running maxima are changed in place."""
        assert self.rule.sinks is not None
        sinks = self.rule.sinks.detach().to(like.dtype).clamp_min(torch.finfo(like.dtype).min).view(1, -1, 1, 1)
        return sinks.expand_as(self.by_head(like[..., :1])).clone().view(*like.shape[:2], 1)


def _exp(s: Tensor, *, far: bool) -> Tensor:
    """e^s in place, for s <= 0; `far` says that there may be numbers far below 0.

    On a CPU those below -87 (in float32) take up to 180 times as long as others, in exp and in every product after it.
    So a weight below e^-61, which no sum beside the row's largest, 1, can feel, becomes 0.
    """
    if not far:
        return s.exp_()
    floor = 0.7 * math.log(torch.finfo(s.dtype).tiny)
    return F.threshold(s.clamp_min_(floor).exp_(), 1.01 * math.exp(floor), 0.0, inplace=True)


@dataclass(eq=False)
class _Rows:
    """A run of queries with what is known of their softmax so far. A sink is a key seen first whose value is zero."""

    at: slice
    q: Tensor  # (B·K, G·t, D), scaled
    y: Tensor  # (B·K, G·t, Dv), the sum of weights · values
    top: Tensor  # (B·K, G·t, 1), the highest score
    total: Tensor  # (B·K, G·t, 1), the sum of weights, where that of the highest score is 1

    @classmethod
    def start(cls, tiles: _Tiles, at: slice, q: Tensor, width: int) -> "_Rows":
        """Before any key was seen."""
        y = q.new_zeros(q.size(0), q.size(1), width)
        if tiles.rule.sinks is not None:
            return cls(at, q, y, tiles.sinks(q), torch.ones_like(q[..., :1]))
        return cls(at, q, y, torch.full_like(q[..., :1], torch.finfo(q.dtype).min), torch.zeros_like(q[..., :1]))

    def see(self, tiles: _Tiles, cols: slice, k: Tensor, v: Tensor) -> None:
        """Look at some more keys (B·K, s, D) and values (B·K, s, Dv)."""
        bias = None if tiles.bias is None else tiles.bias.tile(self.at, cols)
        hidden = tiles.hidden(self.at, cols, self.q)
        w, _ = tiles.scores(self.q, k, hidden, bias)  # (B·K, G·t, s)
        top = torch.maximum(self.top, w.amax(dim=-1, keepdim=True))
        w = _exp(w.sub_(top), far=bias is not None or hidden is not None)
        shrink = _exp(self.top.sub_(top), far=True)
        self.top = top
        self.total.mul_(shrink).add_(w.sum(dim=-1, keepdim=True))
        if tiles.rule.drop_key is not None:
            tiles.by_head(w).mul_(tiles.keep(self.at, cols, w))
        self.y.mul_(shrink).baddbmm_(w, v)

    def end(self) -> tuple[Tensor, Tensor]:
        """The output (B·K, G·t, Dv), and the log-sum-exp of the scores (B·K, G·t, 1): +inf where nothing was seen."""
        empty = self.total == 0.0
        lse = (self.top + self.total.log()).masked_fill_(empty, torch.inf)
        return self.y.div_(self.total.masked_fill_(empty, 1.0)), lse


def _forward(tiles: _Tiles, q: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, Dv) and log-sum-exp (B, T, H, 1)."""
    q_scaled = wide(q) * tiles.rule.scale
    runs: list[_Rows] = []
    width = 0 if keys.places.n else keys.dense()[1].size(-1)
    for cols, k_part, v_part in keys.tiles(tiles.tile[1]):
        if not runs:
            n_kv, width = v_part.shape[2:]
            runs = [_Rows.start(tiles, at, folded(q_scaled[:, at], n_kv).contiguous(), width) for at in tiles.runs()]
        k, v = tiles.close(k_part), tiles.close(v_part)  # (B·K, s, D), (B·K, s, Dv)
        for run in runs:
            if not tiles.sight.is_blank(run.at, cols):
                run.see(tiles, cols, k, v)
    y = q.new_zeros(*q.shape[:3], width)
    lse = q_scaled.new_full((*q.shape[:3], 1), torch.inf)
    for run in runs:
        part, part_lse = run.end()
        y[:, run.at], lse[:, run.at] = tiles.by_token(part), tiles.by_token(part_lse)
    return y, lse


class _Tiled(torch.autograd.Function):
    """The tiles as one step of autograd, which keeps the inputs, the output and one number per row."""

    @staticmethod
    def forward(ctx: Any, tiles: _Tiles, names: tuple[str, ...], *inputs: Tensor) -> Tensor:
        q, k, v, *_ = inputs
        with torch.autocast(q.device.type, enabled=False):
            y, lse = _forward(tiles, q, Keys(k, v, tiles.sight.k))
            tiles.rooms.clear()
        ctx.tiles, ctx.names = tiles, names
        ctx.save_for_backward(*inputs, y, lse)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only under create_graph
            raise OnehopError(
                "tiled attention has no second derivative. Use kernel='plain' for gradients of gradients."
            )
        q, k, v, sinks, *table, y, lse = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            tiles = ctx.tiles
            if table:
                bias = tiled_bias(tiles.rule.bias, tiles.sight, dict(zip(ctx.names, table)))
                tiles = replace(tiles, bias=bias)
            back = _Backward(tiles)
            dq, dk, dv = back.run(q, k, v, y=y, lse=lse, dy=dy)
            tiles.rooms.clear()
        d_sinks = None if sinks is None else back.d_sinks.to(sinks.dtype)
        return None, None, dq, dk, dv, d_sinks, *(tiles.bias.gradients if table else ())


@dataclass(eq=False)
class _RowsBack:
    """A run of queries in the backward pass, with the gradient of the scaled queries so far."""

    at: slice
    q: Tensor  # (B·K, G·t, D), scaled
    dq: Tensor  # (B·K, G·t, D)
    dy: Tensor  # (B·K, G·t, Dv)
    inner: Tensor  # (B·K, G·t, 1), dy · y
    lse: Tensor  # (B·K, G·t, 1)


class _Backward:
    """The gradients of q, k, v, of sinks and of a bias's own tensors, from tiles of weights that are computed again."""

    def __init__(self, tiles: _Tiles):
        self.tiles = tiles
        self.d_sinks = torch.zeros(tiles.shape[1])

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, *, y: Tensor, lse: Tensor, dy: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q (B, T, H, D), k (B, S, K, D) and v (B, S, K, Dv)."""
        tiles, scale, n_kv = self.tiles, self.tiles.rule.scale, k.size(2)
        q_scaled, dy, inner = wide(q) * scale, wide(dy), (wide(dy) * wide(y)).sum(dim=-1, keepdim=True)
        runs = []
        for at in tiles.runs():
            q_part, *others = (folded(x[:, at], n_kv).contiguous() for x in (q_scaled, dy, inner, lse))
            runs.append(_RowsBack(at, q_part, torch.zeros_like(q_part), *others))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for cols, k_part, v_part in Keys(k, v, tiles.sight.k).tiles(tiles.tile[1]):
            k_part, v_part = tiles.close(k_part), tiles.close(v_part)  # (B·K, s, D), (B·K, s, Dv)
            dk_part, dv_part = torch.zeros_like(k_part), torch.zeros_like(v_part)
            for run in runs:
                if tiles.sight.is_blank(run.at, cols):
                    continue
                used, ds = self.tile(run, cols, k_part, v_part)  # (B·K, G·t, s) twice
                dv_part.baddbmm_(used.mT, run.dy)
                dk_part.baddbmm_(ds.mT, run.q)
                run.dq.baddbmm_(ds, k_part)
            dk[:, cols], dv[:, cols] = tiles.apart(dk_part), tiles.apart(dv_part)
        for run in runs:
            dq[:, run.at] = tiles.by_token(run.dq.mul_(scale))
            if tiles.rule.sinks is not None:  # the weight of a key whose value is zero, times -inner
                d = (tiles.sinks(run.q) - run.lse).exp_().mul_(run.inner)
                self.d_sinks = self.d_sinks.to(d) - tiles.by_head(d).sum(dim=(0, 2, 3))
        if tiles.bias is not None:
            tiles.bias.finish()
        return dq, dk, dv

    def tile(self, run: _RowsBack, cols: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The weights by which values were mixed and the gradient of scale · q·k, both (B·K, G·t, s)."""
        tiles, hidden = self.tiles, self.tiles.hidden(run.at, cols, run.q)
        bias = None if tiles.bias is None else tiles.bias.tile(run.at, cols)
        w, bent = tiles.scores(run.q, k, hidden, bias)
        w = _exp(w.sub_(run.lse), far=bias is not None or hidden is not None)
        ds, used = tiles.product(run.dy, v, "gradient"), w
        if tiles.rule.drop_key is not None:
            keep = tiles.keep(run.at, cols, w)
            used = tiles.by_head(w).mul(keep).view_as(w)
            tiles.by_head(ds).mul_(keep)
        ds.sub_(run.inner).mul_(w)
        if tiles.bias is not None and tiles.bias.gradients:
            tiles.bias.learn(run.at, cols, tiles.by_head(ds))
        return used, ds if bent is None else ds.addcmul_(ds, bent.square_(), value=-1.0)
