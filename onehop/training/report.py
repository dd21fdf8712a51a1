"""What a run tells: a line of numbers now and then, metrics.jsonl for machines, loss.png for people."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from onehop.base.errors import DataError
from onehop.base.files import atomic_file


class Metrics:
    """metrics.jsonl: one object a line, with `step`, `tokens`, `loss`, `lr`, `tokens_per_s`, sometimes `val_loss`."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []

    def resume(self, step: int) -> None:
        """Keep what was written up to `step`; a resumed run writes the rest again."""
        self.rows = [row for row in read_metrics(self.path) if row["step"] <= step] if self.path.exists() else []
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def write(self, row: dict[str, Any]) -> None:
        """Append one line."""
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that was cut off by a crash is left out."""
    rows = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise DataError(
                f"{path}:{number} is not JSON ({error.msg}). Restore the file or start a fresh run."
            ) from None
    return rows


def progress_bar(console: Console) -> Progress:
    """A bar with loss, tokens per second and the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
    )


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
        axes.axhline(best, color="#b5442e", linestyle="--", linewidth=1, label=best_label)
        axes.set_ylim(bottom=min(best * 0.9, *(y for _, y in train + held)) if train + held else 0)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, which="both")
    axes.legend()
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", bbox_inches="tight")
