"""Weights & Biases: the numbers of metrics.jsonl as one of its runs. Needs the extra `wandb`; offline unless asked."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onehop.base.files import atomic_write
from onehop.training.events import scalars

FOLDER = "wandb"
RUN = "onehop-run"  # file that holds the id of the run


class Wandb:
    """Writes to `out/wandb`; `wandb sync out/wandb/offline-run-*` sends it later. A run that goes on keeps its id."""

    def __init__(self, out: Path, *, mode: str, step: int, config: Mapping[str, Any]):
        import wandb

        file = out / FOLDER / RUN
        if not step or not file.exists():
            atomic_write(file, secrets.token_hex(8))
        self._run = wandb.init(
            dir=str(out), mode=mode, project="onehop", name=out.name, id=file.read_text(), resume="allow",
            config=dict(config),
        )  # fmt: skip

    def write(self, row: Mapping[str, Any], *, wall_time: float) -> None:
        """One line of metrics.jsonl."""
        self._run.log({**dict(scalars(row)), "wall_time": wall_time}, step=row["step"])

    def close(self) -> None:
        """Let the run end."""
        self._run.finish()
