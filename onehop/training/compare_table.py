"""What a comparison tells in numbers: one table."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onehop.base.files import atomic_write
from onehop.base.units import human_count, human_flops, human_time
from onehop.training.paired import Difference, difference

COLUMNS = ("recipe", "parameters", "steps", "tokens", "FLOPs", "time", "mean", "spread", "difference (95 %)", "verdict")


@dataclass(frozen=True)
class Result:
    """A finished run. `seconds` are those in steps.

    val_loss: the last one, in nats per token; score: the same in the unit of the comparison; both None of a run that
    diverged.
    """

    name: str
    seed: int
    folder: str
    steps: int
    tokens: int
    seconds: float
    flops: float | None
    val_loss: float | None
    score: float | None
    diverged: str | None


@dataclass(frozen=True)
class Line:
    """One recipe over all seeds: means, the standard deviation of its scores, and how it differs from the first."""

    name: str
    n_params: int
    steps: int
    tokens: float | None
    flops: float | None
    seconds: float | None
    scores: dict[int, float]
    mean: float | None
    spread: float | None
    difference: Difference | None
    n_diverged: int
    is_first: bool

    @property
    def verdict(self) -> str:
        """What can be said: better or worse than the first, or undecided."""
        if self.n_diverged:
            return f"diverged ({self.n_diverged} of {self.n_diverged + len(self.scores)})"
        if self.is_first:
            return "baseline"
        return "undecided" if self.difference is None else self.difference.verdict

    def cells(self) -> tuple[str, ...]:
        """The line as text, by COLUMNS."""
        tokens = "" if self.tokens is None else human_count(self.tokens)
        flops = "" if self.flops is None else human_flops(self.flops).removesuffix("FLOP").rstrip()
        taken = "" if self.seconds is None else human_time(self.seconds)
        scores = [f"{x:.4f}" if x is not None else "" for x in (self.mean, self.spread)]
        return (
            self.name,
            human_count(self.n_params),
            str(self.steps),
            tokens,
            flops,
            taken,
            *scores,
            self._apart,
            self.verdict,
        )

    @property
    def _apart(self) -> str:
        d = self.difference
        if self.is_first or d is None:
            return ""
        interval = "" if d.low is None else f" [{d.low:+.4f}, {d.high:+.4f}]"
        return f"{d.mean:+.4f}{interval}"


def run_folder(name: str, seed: int) -> str:
    """The name of a run's folder: what no file system minds."""
    return f"{re.sub(r'[^A-Za-z0-9._=,+~-]', '_', name)}-seed{seed}"


def lines(
    names: Sequence[str], results: Sequence[Result], n_params: Mapping[str, int], steps: Mapping[str, int]
) -> list[Line]:
    """The table of what has been trained so far."""
    scores: dict[str, dict[int, float]] = {name: {} for name in names}
    for result in results:
        if result.score is not None:
            scores[result.name][result.seed] = result.score
    base = scores[names[0]]
    return [
        _line(name, scores[name], [r for r in results if r.name == name], n_params[name], steps[name], base)
        for name in names
    ]


def _line(
    name: str, scores: dict[int, float], results: Sequence[Result], n_params: int, steps: int, base: dict[int, float]
) -> Line:
    ended, is_first = [r for r in results if r.score is not None], scores is base
    return Line(
        name,
        n_params,
        steps,
        tokens=_mean([r.tokens for r in ended]),
        flops=_mean([r.flops for r in ended if r.flops is not None]),
        seconds=_mean([r.seconds for r in ended]),
        scores=scores,
        mean=_mean(list(scores.values())),
        spread=statistics.stdev(scores.values()) if len(scores) > 1 else None,
        difference=None if is_first else difference(scores, base),
        n_diverged=len(results) - len(ended),
        is_first=is_first,
    )


def _mean(numbers: Sequence[float]) -> float | None:
    return statistics.fmean(numbers) if numbers else None


def write_table(out: Path, found: Sequence[Line], *, equal: str, unit: str) -> None:
    """comparison.md."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *(line.cells() for line in found)]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    seeds = max((len(line.scores) for line in found), default=0)
    about = (
        f"Validation loss ({unit}) at equal {equal}, {seeds} seeds. Differences from the first recipe are paired "
        "by seed; undecided: their interval (Student's t) covers zero, or one seed tells none. Each interval stands by "
        "itself."
    )
    atomic_write(out / "comparison.md", f"{about}\n\n{text}\n")
