"""What a run tells: a line of numbers now and then, metrics.jsonl for machines, loss.png for people."""

import json
import math
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from onehop.base.errors import DataError
from onehop.base.files import append, atomic_file, atomic_write

BARS = "▁▂▃▄▅▆▇█"
MOST_TICKS = 12  # numbers beside an axis
AROUND = 29  # columns of a moving line beside phase and note: ten of the bar, share, time left, gaps
SILENCE = 5.0  # seconds after which a log that is no terminal gets a line


class Metrics:
    """metrics.jsonl: one object a line, with `step`, `tokens`, `loss`, `lr`, `grad_norm`, `tokens_per_s`, `memory`.

    Sometimes `mfu`, `val_loss`, `ema_val_loss`; where there are experts, their shares of the tokens by layer
    (`expert_load`), how even these are (`expert_entropy`, 1: even), and how undecided the routers are about a token
    (`router_entropy`, nats); `grad_norms`: the gradient's norm by layers; alarms: `spike`, `skipped`,
    `dead_experts` ([layer, expert] each).

    Lines after `step`, which a run wrote that was killed before it saved, are dropped: it writes them again.
    """

    def __init__(self, path: Path, *, step: int):
        self.path = path
        self.rows = keep_until(path, step)
        self._size = self._found()

    def write(self, row: dict[str, Any]) -> None:
        """Append one line; what JSON has no number for becomes null."""
        if self._found() > self._size:
            raise DataError(f"{self.path} was written by another run meanwhile. Set out=OTHER, or wait for its end.")
        row = finite(row)
        self.rows.append(row)
        append(self.path, json.dumps(row, allow_nan=False) + "\n")
        self._size = self._found()

    @property
    def written(self) -> list[int]:
        """How many lines there are, and the step of the last: what a checkpoint remembers of them."""
        return [len(self.rows), self.rows[-1]["step"] if self.rows else 0]

    def missing(self, written: Sequence[int]) -> list[str]:
        """What of the lines that were `written` is gone, in words."""
        n, last = written
        there, ends = self.written
        if ends < last:
            steps = f"the line of step {last} is" if ends + 1 == last else f"lines of steps {ends + 1}-{last} are"
            return [f"{self.path.name}: {steps} missing"]
        return [f"{self.path.name}: {n - there} of the lines up to step {last} are missing"] if there < n else []

    def _found(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def finite(value: Any) -> Any:
    """A value as JSON may hold it: None for each number that is none, or is infinite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def keep_until(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines of a file of JSON objects up to a step; later ones are dropped from it, and the second of one step.

    Two runs at once, where no lock kept them apart, have left each step twice.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for row in read_metrics(path):
        if row["step"] <= step and (not rows or row["step"] > rows[-1]["step"]):
            rows.append(row)
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))
    return rows


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that was cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("no step")
        except ValueError as error:  # no JSON, or no UTF-8
            if number == len(lines):
                break
            fault = f"is not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else "is no line of a run"
            raise DataError(f"{path}:{number} {fault}. Restore the file or start over with --fresh.") from None
        rows.append(row)
    return rows


def sparkline(numbers: Collection[float]) -> str:
    """Numbers as bars one character wide, the lowest lowest; what is no number leaves a gap."""
    known = [x for x in numbers if math.isfinite(x)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((x - low) * scale)] if math.isfinite(x) else " " for x in numbers)


class Display:
    """What is going on: a moving bar on a terminal, a line now and then in a log."""

    def __init__(self, console: Console):
        self.console = console
        self.moving = console.is_terminal or console.is_jupyter
        columns = (BarColumn(bar_width=None), TaskProgressColumn(), TextColumn("{task.fields[note]}"))
        self._bar = Progress(
            TextColumn("{task.description}"),
            *columns,
            TimeRemainingColumn(),
            console=console,
            disable=not self.moving,
        )
        self._task = self._bar.add_task("", note="")
        self._last = time.monotonic()

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def phase(self, what: str, *, total: int | None = None, done: int = 0) -> None:
        """Begin something that takes `total` steps (none: nobody knows), of which some are done."""
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, completed=done, note="")
        if not self.moving:
            self.say(what)

    def note(self, text: str, *, done: int | None = None) -> None:
        """Say how far it is."""
        self._bar.update(self._task, note=text, completed=done)
        if not self.moving and time.monotonic() - self._last > SILENCE:
            self.say(text)

    @property
    def room(self) -> int:
        """Columns that a note has beside its phase's name, bar, share and time left; in a log as many as it wants."""
        return self.console.width - len(self._bar.tasks[-1].description) - AROUND if self.moving else sys.maxsize

    def say(self, text: str, **style: Any) -> None:
        """Print a line that stays."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True, **style)
        self._last = time.monotonic()


def fitted(pieces: Sequence[tuple[int, str]], room: int) -> str:
    """Pieces side by side, as many as `room` columns hold: the highest numbers are left out first, 0 never."""
    kept = [(rank, piece) for rank, piece in pieces if piece]
    while len(text := "  ".join(piece for _, piece in kept)) > room and (most := max(rank for rank, _ in kept)) > 0:
        kept.remove(next(one for one in reversed(kept) if one[0] == most))
    return text


def draw_losses(rows: Sequence[dict[str, Any]], path: Path, *, best: float | None, best_label: str, title: str) -> None:
    """Draw training and validation loss against the step, and the best possible loss if it is known, into a PNG."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.subplots()
    train = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
    held = [(row["step"], row["val_loss"]) for row in rows if row.get("val_loss") is not None]
    if train:
        axes.plot(*zip(*train, strict=True), color="#9bb8d3", linewidth=1, label="training")
    if held:
        axes.plot(*zip(*held, strict=True), color="#1f5a99", marker="o", markersize=3, label="validation")
    if best is not None:
        axes.axhline(best, color="#b5442e", linestyle="--", linewidth=1, label=in_words(best_label))
    log_scale(axes, [y for _, y in train + held] + ([] if best is None else [best]))
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=in_words(title))
    axes.grid(alpha=0.25, which="major")
    if train or held or best is not None:
        axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")


def log_scale(axes: Any, shown: Sequence[float]) -> None:
    """Draw the upright axis of numbers `shown` by their logarithms, with round numbers beside it."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shown = [y for y in shown if math.isfinite(y)]
    if shown and min(shown) > 0:  # a text whose every token is certain reaches 0, which no logarithm shows
        axes.set_yscale("log")
        low, high = min(shown) * 0.92, max(shown) * 1.05
        axes.set_ylim(low, high)
        axes.set_yticks(_ticks(low, high))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def in_words(text: str) -> str:
    """A text as matplotlib draws it word for word: between two dollars it would read formulas."""
    return text.replace("$", r"\$")


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others, not too many of them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    inside = []
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        inside = [y for e in exponents for m in digits if low <= (y := m * 10.0**e) <= high]
        if len(inside) <= MOST_TICKS:
            break
    return inside[:: math.ceil(len(inside) / MOST_TICKS)] if inside else [(low + high) / 2]
