"""What a run says at its end."""

from collections.abc import Iterator, Mapping

from onehop.base.units import human_time
from onehop.training.took import Took
from onehop.training.trainer import Trainer
from onehop.training.understanding import Understanding


def closing_lines(
    trainer: Trainer,
    took: Took,
    understanding: Mapping[str, Understanding],
    *,
    val_loss: float | None,
    best: float | None,
) -> Iterator[str]:
    """How far it came, in what time, with what memory and speed, and what it answered."""
    n, more = trainer.progress.step, trainer.progress.step - took.first.step
    over = "" if best is None or val_loss is None else f", {val_loss / best - 1:.1%} above the best possible {best:.3f}"
    trained = f"trained {n} steps" if more == n else f"trained {more} steps more, {n} in all,"
    yield f"{trained} in {human_time(took.seconds)}: validation loss {val_loss:.3f}{over}"
    if (planned := trainer.report.get("planned")) is not None:
        yield planned
    for kind, u in understanding.items():
        if kind == "pairs":
            yield f"held-out pairs: {u.accuracy:.1%} of {u.asked} answers are right, character by character"
        else:
            yield f"held-out “{kind}” questions: {u.accuracy:.1%} right of {u.asked} (guessing: {u.chance:.0%})"
    yield f"time: {took}"
