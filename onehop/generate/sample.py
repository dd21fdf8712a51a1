"""From logits to the next token: small transforms of (B, V) logits with one parameter per row, in a fixed order.

penalties -> temperature -> top_k -> top_p -> min_p -> draw. This is the order of OpenAI-style servers and of
`transformers`; some libraries apply the temperature last. Nothing here depends on a row's neighbours or on global
random numbers: each transform leaves a row for which it is off exactly as it was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from onehop.base.errors import OnehopError
from onehop.generate.request import Limits, Request

LEAD = 128  # the largest logits that are sorted first; a nucleus is rarely wider


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability and those of the likeliest tokens, (id, log-probability), best first.

    They are raw: log-softmax of the model's logits over the real ids, whatever temperature, cuts and penalties say.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def repetition(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Divide positive and multiply negative logits of tokens `seen` (B, V) bool by penalty (B, 1).

    Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign treated as later libraries do.
    """
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen & (penalty != 1.0), changed, logits)


def presence_and_frequency(logits: Tensor, counts: Tensor, *, presence: Tensor, frequency: Tensor) -> Tensor:
    """Subtract presence + frequency · count from tokens generated counts (B, V) times (OpenAI's definition)."""
    return logits - frequency * counts - presence * (counts > 0)


def temper(logits: Tensor, temperature: Tensor) -> Tensor:
    """(logits - their maximum) / temperature (B, 1): the same softmax, and nothing overflows upwards."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Keep the k (B, 1) largest logits, the lowest ids among equals; 0 is off. Fan et al. 2018, arXiv:1805.04833."""
    vocabulary = logits.size(-1)
    n = torch.where(k == 0, vocabulary, k).clamp(max=vocabulary)
    leading = logits.topk(int(torch.where(n < vocabulary, n, 1).max())).values
    return torch.where(n < vocabulary, _keep_largest(logits, leading, n.clamp(max=leading.size(-1))), logits)


def top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep the fewest likeliest tokens whose probabilities reach p (B, 1), the lowest ids among equals; 1 is off.

    Holtzman et al. 2020, arXiv:1904.09751, section 3.1.
    """
    vocabulary, total = logits.size(-1), logits.logsumexp(dim=-1, keepdim=True)
    width = min(LEAD, vocabulary)
    while True:
        leading = logits.topk(width).values
        sums = (leading - total).exp().cumsum(dim=-1, dtype=torch.float64)
        if width == vocabulary or bool(((sums[:, -1:] >= p) | (p >= 1.0)).all()):
            break
        width = min(16 * width, vocabulary)
    n = ((sums < p).sum(dim=-1, keepdim=True) + 1).clamp(max=width)
    return torch.where(p < 1.0, _keep_largest(logits, leading, n), logits)


def min_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep tokens at least p (B, 1) times as likely as the likeliest; 0 is off. Nguyen et al. 2024, 2407.01082."""
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + p.log().to(logits.dtype), -math.inf)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative probability, by id, passes uniform (B, 1) float64 in [0, 1) -> (B,) int64."""
    sums = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True).squeeze(-1)


def raw_logprobs(logits: Tensor, chosen: Tensor, n_top: Sequence[int | None]) -> list[TokenLogprob | None]:
    """The raw log-probability of each row's chosen token (B,), and of n_top[b] rivals; None where not asked for."""
    logprobs = wide(logits).log_softmax(dim=-1)
    of_chosen = logprobs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).tolist()
    width = min(max((n for n in n_top if n is not None), default=0), logits.size(-1))
    best = logprobs.topk(width)
    values, ids, picked = best.values.tolist(), best.indices.tolist(), chosen.tolist()
    return [
        None if n is None else TokenLogprob(picked[b], of_chosen[b], tuple(zip(ids[b][:n], values[b][:n])))
        for b, n in enumerate(n_top)
    ]


class Sampler:
    """The running rows' sampling parameters, their random generators, and what each row has said so far."""

    def __init__(self, requests: Sequence[Request], limits: Limits, *, device: torch.device | str = "cpu"):
        """What was said before counts for the repetition penalty: the prompt (not a source) and the answer."""
        self.n_ids, self.device = limits.n_ids, torch.device(device)
        self.never, self.never_first = (
            torch.tensor(sorted(i for i in ids if i < self.n_ids), dtype=torch.int64, device=self.device)
            for ids in (limits.never, limits.never_first)
        )
        self.limits, self.drawn = limits, 0  # tokens of each answer so far
        self.requests = list(requests)
        self.generators = [None if r.seed is None else Generator().manual_seed(r.seed) for r in requests]
        self.seen = self.counts = torch.empty(0)
        if any(r.penalised for r in requests):
            self.seen = torch.zeros(len(requests), self.n_ids, dtype=torch.bool, device=self.device)  # (B, V)
            self.counts = torch.zeros(len(requests), self.n_ids, device=self.device)  # (B, V), generated tokens only
            for b, request in enumerate(() if limits.has_source else requests):
                self.seen[b, list(request.prompt)] = True
        self._set_columns()

    def __call__(self, logits: Tensor) -> Tensor:
        """The next token of every row, (B, V) -> (B,) int64; only ids that are allowed are drawn."""
        logits = self._allowed(logits[:, : self.n_ids])
        if self.penalised:
            logits = self._penalise(wide(logits))
        best = logits.max(dim=-1)  # among equals the first
        if bool(best.values.isnan().any()):
            raise OnehopError(
                "the model's logits are not numbers (NaN): its weights are damaged, or its activations too large for "
                "this dtype. Try dtype float32."
            )
        if not self.draws:
            return self._note(best.indices)
        cut = temper(wide(logits), self.temperature)
        for transform, column, off in self.cuts:
            cut = cut if off else transform(cut, column)
        drawn = draw(cut, self._uniform())
        return self._note(torch.where(self.greedy, best.indices, drawn) if self.mixed else drawn)

    def _allowed(self, logits: Tensor) -> Tensor:
        """The logits of the ids that may be drawn now; -inf elsewhere."""
        step, self.drawn, limits = self.drawn, self.drawn + 1, self.limits
        if step == 0 and limits.first is not None:
            return _nothing_but(limits.first, logits)
        if self.never.numel():
            logits = logits.index_fill(1, self.never, -math.inf)
        if self.never_first.numel() and step == (limits.first is not None):
            logits = logits.index_fill(1, self.never_first, -math.inf)
        if limits.last is None:
            return logits
        full = [not r.ignore_eos and r.room(limits) == step + 1 for r in self.requests]
        if not any(full):
            return logits
        return torch.where(torch.tensor(full, device=self.device)[:, None], _nothing_but(limits.last, logits), logits)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.requests = [self.requests[b] for b in rows]
        self.generators = [self.generators[b] for b in rows]
        if self.penalised:
            index = torch.tensor(rows, device=self.device)
            self.seen, self.counts = self.seen.index_select(0, index), self.counts.index_select(0, index)
        self._set_columns()

    def _set_columns(self) -> None:
        rows = self.requests
        self.penalised = self.seen.dim() > 1
        self.draws, self.mixed = any(not r.greedy for r in rows), any(r.greedy for r in rows)
        self.greedy = torch.tensor([r.greedy for r in rows], device=self.device)  # (B,)
        self.temperature = self._column([1.0 if r.greedy else r.temperature for r in rows])
        most = [min(r.top_k, self.n_ids) for r in rows]
        self.cuts = (
            (top_k, self._column(most, torch.int64), all(k == 0 for k in most)),
            (top_p, self._column([r.top_p for r in rows], torch.float64), all(r.top_p == 1.0 for r in rows)),
            (min_p, self._column([r.min_p for r in rows]), all(r.min_p == 0.0 for r in rows)),
        )
        self.penalties = [
            self._column([getattr(r, name) for r in rows])
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        ]

    def _column(self, values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device).unsqueeze(1)  # (B, 1)

    def _penalise(self, logits: Tensor) -> Tensor:
        again, presence, frequency = self.penalties
        logits = repetition(logits, self.seen, again)
        return presence_and_frequency(logits, self.counts, presence=presence, frequency=frequency)

    def _note(self, tokens: Tensor) -> Tensor:
        if self.penalised:
            column = tokens.unsqueeze(1)
            self.seen.scatter_(1, column, True)
            self.counts.scatter_add_(1, column, torch.ones_like(column, dtype=self.counts.dtype))
        return tokens

    def _uniform(self) -> Tensor:
        """One draw in [0, 1) per row that draws, from its own generator."""
        values = [
            0.0 if g is None or r.greedy else float(torch.rand((), generator=g, dtype=torch.float64))
            for g, r in zip(self.generators, self.requests)
        ]
        return self._column(values, torch.float64)


def _nothing_but(token_id: int, logits: Tensor) -> Tensor:
    return torch.full_like(logits, -math.inf).index_fill(1, torch.tensor(token_id, device=logits.device), 0.0)


def wide(logits: Tensor) -> Tensor:
    """Logits in float32 at least."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _keep_largest(logits: Tensor, leading: Tensor, n: Tensor) -> Tensor:
    """Keep the n (B, 1) largest of each row, the lowest ids among equals; `leading` are its largest values, sorted."""
    edge = leading.gather(-1, n - 1)  # (B, 1)
    above, tied = logits > edge, logits == edge
    spare = n - above.sum(dim=-1, keepdim=True)
    if bool((tied.sum(dim=-1, keepdim=True) > spare).any()):
        tied &= tied.cumsum(dim=-1) <= spare
    return logits.masked_fill(~(above | tied), -math.inf)
