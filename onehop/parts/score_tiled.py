"""Attention over tiles: the same numbers as `plain`, forward and backward, without ever holding T × S of anything.

FlashAttention, Dao et al. 2022, arXiv:2205.14135: algorithm 1 is `_forward`, algorithm 4 is `_Backward`; that the
division waits for the end and only the log-sum-exp is kept is FlashAttention-2, arXiv:2307.08691, section 3.1. The
softmax of a row is built tile by tile: a running maximum, a running sum, and an output that shrinks whenever a larger
score turns up. The backward pass computes each tile of weights again. Tiles that nobody may see are never computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from onehop.parts.keys import Keys
from onehop.parts.score_plain import kept, stacked, wide
from onehop.parts.score_rule import ScoreRule, learned
from onehop.parts.sight import Sight

# Queries and keys of a tile. Measured on a CPU at 8 heads: large enough for the products, small enough for the cache.
TILE = (256, 512)


def tiled(q: Tensor, keys: Keys, rule: ScoreRule, sight: Sight, *, tile: tuple[int, int] = TILE) -> Tensor:
    """Let q (B, T, H, D) look at `keys` -> (B, T, H, Dv), for the rules of which `why_not_tiled` has nothing to say.

    16-bit inputs are computed in float32. Memory beside the inputs and the output: one tile of all heads.
    """
    table = learned(rule.bias)
    n_kv = next(iter(keys.tiles(1)))[1].size(2)
    job = _Job(rule, sight, tile=tile, b=q.size(0), n_kv=n_kv, table=tuple(table))
    sinks = rule.sinks
    if torch.is_grad_enabled():
        k, v = keys.dense()
        if table or any(x is not None and x.requires_grad for x in (q, k, v, sinks)):
            out: Tensor = _Tiled.apply(job, q, k, v, sinks, *table.values())
            return out
    return _forward(job, q, keys)[0]


def why_not_tiled(rule: ScoreRule) -> str | None:
    """What of the rule cannot be computed tile by tile; None if all of it can."""
    return None if rule.change is None else "a score rule of your own is known to the plain kernel only"


@dataclass(frozen=True, eq=False)
class _Job:
    """What stays the same over all tiles. Rows lie as (B·K, T·G, …): the G queries of a group share their keys."""

    rule: ScoreRule
    sight: Sight
    tile: tuple[int, int]
    b: int
    n_kv: int
    table: tuple[str, ...]  # names of the bias's tensors that want a gradient

    def rows(self, t: int, group: int) -> Iterator[tuple[slice, slice]]:
        """Runs of queries, and where their G rows lie."""
        for start in range(0, t, self.tile[0]):
            stop = min(start + self.tile[0], t)
            yield slice(start, stop), slice(start * group, stop * group)

    def scores(
        self, q: Tensor, k: Tensor, rows: slice, cols: slice, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Masked scores (B·K, t·G, s) of scaled queries; with a softcap, beside them tanh of the bare ones."""
        s = torch.bmm(q, k.mT)  # (B·K, t·G, s)
        bent = None
        if self.rule.softcap is not None:
            bent = s.div_(self.rule.softcap).tanh_()
            s = bent * self.rule.softcap
        if bias is not None:
            self.by_head(s, rows).add_(self.beside(bias))
        mask = self.sight.tile(rows, cols)  # (B | 1, H | 1, t, s)
        if mask is not None:  # added and not filled in: vectorised, and small, since heads mostly share it
            hidden = torch.zeros(mask.shape, dtype=s.dtype, device=s.device).masked_fill_(~mask, -torch.inf)
            self.by_head(s, rows).add_(self.beside(hidden))
        return s, bent

    def bias(self, rows: slice, cols: slice, table: dict[str, Tensor] | None = None) -> Tensor | None:
        """The bias of a tile, (B | 1, H | 1, t, s), with the tensors of `table` in place of the module's own."""
        if self.rule.bias is None:
            return None
        at = self.sight.q.at[:, rows], self.sight.k.at[:, cols]
        out: Tensor = functional_call(self.rule.bias, table, at) if table else self.rule.bias(*at)
        return out

    def by_head(self, s: Tensor, rows: slice) -> Tensor:
        """(B·K, t·G, s) seen as (B, K, t, G, s)."""
        return s.view(self.b, self.n_kv, rows.stop - rows.start, -1, s.size(-1))

    def beside(self, x: Tensor) -> Tensor:
        """(B | 1, H | 1, t, s) seen so that it broadcasts with `by_head`."""
        return x.unsqueeze(3) if x.size(1) == 1 else x.unflatten(1, (self.n_kv, -1)).transpose(2, 3)

    def keep(self, w: Tensor, rows: slice, cols: slice) -> Tensor:
        """What dropout multiplies the weights of a tile by, 0 or 1 / (1 - rate), seen like `by_head`."""
        t = rows.stop - rows.start
        shape = (self.b, w.size(0) // self.b * w.size(1) // t, t, w.size(-1))  # (B, H, t, s)
        return self.beside(kept(self.rule, shape, rows, cols).to(w.dtype).div_(1.0 - self.rule.dropout))


def _forward(job: _Job, q: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, Dv) and the log-sum-exp of every row of scores (B·K, T·G, 1); +inf where nothing was seen."""
    t, heads = q.shape[1:3]
    group = heads // job.n_kv
    scaled = laid_out(wide(q), job.n_kv) * job.rule.scale  # (B·K, T·G, D)
    top, total = _start(job, scaled)  # (B·K, T·G, 1) twice
    y: Tensor | None = None
    for cols, k, v in keys.tiles(job.tile[1]):
        k, v = _own(k), _own(v)  # (B·K, s, D), (B·K, s, Dv)
        if y is None:
            y = scaled.new_zeros(scaled.size(0), scaled.size(1), v.size(-1))  # (B·K, T·G, Dv)
        for rows, lines in job.rows(t, group):
            if job.sight.is_blank(rows, cols):
                continue
            w, _ = job.scores(scaled[:, lines], k, rows, cols, job.bias(rows, cols))
            highest = torch.maximum(top[:, lines], w.amax(dim=-1, keepdim=True))
            w.sub_(highest).exp_()
            shrink = (top[:, lines] - highest).exp_()
            total[:, lines] = torch.addcmul(w.sum(dim=-1, keepdim=True), total[:, lines], shrink)
            top[:, lines] = highest
            if job.rule.drop_key is not None:
                job.by_head(w, rows).mul_(job.keep(w, rows, cols))
            y[:, lines].mul_(shrink).add_(torch.bmm(w, v))
    assert y is not None
    empty = total == 0.0
    y.div_(total.masked_fill(empty, 1.0))
    return laid_back(y, batch=job.b, t=t).to(q.dtype), (top + total.log()).masked_fill_(empty, torch.inf)


def _start(job: _Job, q: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and sum of each row before the first tile: a sink is a key that is seen first and whose value is zero."""
    shape = (*q.shape[:2], 1)
    if job.rule.sinks is None:
        return q.new_full(shape, torch.finfo(q.dtype).min), q.new_zeros(shape)
    return _sink_of_rows(job.rule.sinks, job, q).clone(), q.new_ones(shape)


def _sink_of_rows(sinks: Tensor, job: _Job, q: Tensor) -> Tensor:
    """(H,) -> the sink of each row, (B·K, T·G, 1)."""
    group = sinks.numel() // job.n_kv
    rows = sinks.to(q.dtype).view(1, job.n_kv, 1, group).expand(job.b, -1, q.size(1) // group, -1)
    return rows.reshape(q.size(0), q.size(1), 1)


class _Tiled(torch.autograd.Function):
    """The tiles as one step of autograd, which keeps the inputs, the output and one number per row."""

    @staticmethod
    def forward(ctx: Any, job: _Job, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *table: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            y, lse = _forward(job, q, Keys(k, v, job.sight.k))
        ctx.job = job
        ctx.save_for_backward(q, k, v, sinks, y, lse, *table)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, *rest = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            return (None, *_Backward(ctx.job, q, sinks, *rest, dy=dy).run(k, v))


class _Backward:
    """The gradients of q, k, v, of sinks and of a bias's own tensors, from tiles of weights that are computed again."""

    def __init__(self, job: _Job, q: Tensor, sinks: Tensor | None, y: Tensor, lse: Tensor, *table: Tensor, dy: Tensor):
        self.job, self.like, self.sinks, self.lse = job, q, sinks, lse
        self.q = laid_out(wide(q), job.n_kv) * job.rule.scale  # (B·K, T·G, D)
        self.dy = laid_out(wide(dy), job.n_kv)  # (B·K, T·G, Dv)
        self.inner = (self.dy * laid_out(wide(y), job.n_kv)).sum(dim=-1, keepdim=True)  # (B·K, T·G, 1)
        self.table = {name: x.detach().requires_grad_() for name, x in zip(job.table, table)}
        self.d_table = [torch.zeros_like(x) for x in table]

    def run(self, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients in the order of the inputs: q (B, T, H, D), k (B, S, K, D), v (B, S, K, Dv), sinks, table."""
        job, (t, heads) = self.job, self.like.shape[1:3]
        dq = torch.zeros_like(self.q)  # (B·K, T·G, D)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for cols, k_part, v_part in Keys(k, v, job.sight.k).tiles(job.tile[1]):
            k_part, v_part = _own(k_part), _own(v_part)  # (B·K, s, D), (B·K, s, Dv)
            dk_part, dv_part = torch.zeros_like(k_part), torch.zeros_like(v_part)
            for rows, lines in job.rows(t, heads // job.n_kv):
                if job.sight.is_blank(rows, cols):
                    continue
                used, ds = self.tile(rows, lines, cols, k_part, v_part)
                dv_part.baddbmm_(used.mT, self.dy[:, lines])
                dk_part.baddbmm_(ds.mT, self.q[:, lines])
                dq[:, lines].add_(torch.bmm(ds, k_part))
            dk[:, cols] = dk_part.unflatten(0, (job.b, -1)).transpose(1, 2)
            dv[:, cols] = dv_part.unflatten(0, (job.b, -1)).transpose(1, 2)
        dq = laid_back(dq.mul_(job.rule.scale), batch=job.b, t=t).to(self.like.dtype)
        return dq, dk, dv, self.d_sinks(), *self.d_table

    def tile(self, rows: slice, lines: slice, cols: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The weights by which values were mixed and the gradient of scale · q·k, both (B·K, t·G, s)."""
        job = self.job
        with torch.set_grad_enabled(bool(self.table)):
            bias = job.bias(rows, cols, self.table)
        w, bent = job.scores(self.q[:, lines], k, rows, cols, None if bias is None else bias.detach())
        w.sub_(self.lse[:, lines]).exp_()
        ds = torch.bmm(self.dy[:, lines], v.mT)
        used = w
        if job.rule.drop_key is not None:
            keep = job.keep(w, rows, cols)
            used = job.by_head(w.clone(), rows).mul_(keep).view_as(w)
            job.by_head(ds, rows).mul_(keep)
        ds.sub_(self.inner[:, lines]).mul_(w)
        if bias is not None and self.table:
            self.learn(bias, job.by_head(ds, rows).transpose(2, 3).flatten(1, 2))
        return used, ds if bent is None else ds.addcmul_(ds, bent.square_(), value=-1.0)

    def learn(self, bias: Tensor, d_bias: Tensor) -> None:
        """Carry the gradient of a tile's bias, (B, H, t, s), on to the tensors that it was made of."""
        parts = torch.autograd.grad(bias, list(self.table.values()), d_bias.sum_to_size(bias.shape), allow_unused=True)
        for total, part in zip(self.d_table, parts):
            if part is not None:
                total.add_(part)

    def d_sinks(self) -> Tensor | None:
        """A sink is a key whose value is zero: its gradient is -weight · inner, over all rows of its head."""
        if self.sinks is None:
            return None
        d = (_sink_of_rows(self.sinks, self.job, self.q) - self.lse).exp_().mul_(self.inner).neg_()  # (B·K, T·G, 1)
        return d.view(self.job.b, self.job.n_kv, -1, self.sinks.numel() // self.job.n_kv).sum((0, 2)).flatten()


def laid_out(x: Tensor, n_kv: int) -> Tensor:
    """(B, T, H, D) -> (B·K, T·G, D): the G queries of a token that share a kv head lie side by side."""
    b, t, h, d = x.shape
    return x.reshape(b, t, n_kv, h // n_kv, d).transpose(1, 2).reshape(b * n_kv, -1, d)


def laid_back(x: Tensor, *, batch: int, t: int) -> Tensor:
    """(B·K, T·G, D) -> (B, T, H, D), undoing `laid_out`."""
    return x.view(batch, -1, t, x.size(1) // t, x.size(-1)).transpose(1, 2).flatten(2, 3)


def _own(x: Tensor) -> Tensor:
    """A run of keys or values (B, s, K, D) as (B·K, s, D), close together and in the type of sums."""
    return wide(stacked(x)).contiguous()
