"""TensorBoard events: the numbers of metrics.jsonl in the form that TensorBoard reads. Needs the extra `train`."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onehop.base.errors import MissingExtra
from onehop.base.files import disk_errors
from onehop.config.recipe import TrainConfig

FOLDER = "tensorboard"


def check_logs(cfg: TrainConfig) -> None:
    """Raises MissingExtra where a recipe asks for a log whose package is not installed."""
    if cfg.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", extra="train", needed_for="train.tensorboard=true")
    if cfg.wandb != "no" and importlib.util.find_spec("wandb") is None:
        raise MissingExtra("wandb", extra="wandb", needed_for=f"train.wandb={cfg.wandb}")


class Events:
    """Writes to `out/tensorboard`. Of a run that is resumed after `step`, TensorBoard forgets what it saw later."""

    def __init__(self, out: Path, *, step: int):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        with disk_errors(out / FOLDER):
            self._writer = EventFileWriter(str(out / FOLDER))
            if step:
                self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, row: Mapping[str, Any], *, wall_time: float) -> None:
        """One line of metrics.jsonl; wall_time: seconds since 1970."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        event = self._event(step=row["step"], wall_time=wall_time, summary=self._summary(value=values))
        with disk_errors(Path(self._writer.get_logdir()) / "events"):
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Let the file go."""
        self._writer.close()


def scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line by its path: loss, grad_norms/layers.0, expert_load/1/3."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            yield from scalars({str(i): inner for i, inner in enumerate(value)}, f"{prefix}{key}/")
        elif isinstance(value, int | float) and f"{prefix}{key}" != "step":
            yield f"{prefix}{key}", float(value)
