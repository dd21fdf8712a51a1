"""What several commands share: printing for people or for machines."""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from onehop.base.errors import ConfigError, RequestError

UNBROKEN = 10_000  # characters: how wide a pipe or a file is taken to be, whose lines `grep` reads one by one

Json = Annotated[bool, typer.Option("--json", help="print JSON, in one line, instead of text")]


def new_app() -> typer.Typer:
    """The application of one command; refusals and tracebacks are main's business."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a reader that has gone to main, as everywhere else."""
        raise BrokenPipeError


def people(as_json: bool) -> Console:
    """The console for people: the terminal, or a pipe, whose lines are not broken; or nothing where a machine reads."""
    return _Console(quiet=as_json, highlight=False, markup=False, width=None if sys.stdout.isatty() else UNBROKEN)


def repeat_on_a_gpu() -> None:
    """What train.deterministic needs of the environment: without it torch refuses products on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def beside(as_json: bool) -> Callable[[str], None]:
    """Prints a line to standard error, where it spoils no output; nothing where a machine reads."""
    return lambda line: None if as_json else typer.echo(line, err=True)


def machines(value: Any) -> None:
    """Print one JSON value; infinities and NaN, which JSON lacks, become null."""
    typer.echo(json.dumps(_finite(value), ensure_ascii=False))


def place_of(model: str) -> Path:
    """Where a model lies on this disk; where a folder of GGUF files was named, standard error tells which is taken."""
    from onehop.weights.locate import locate  # here: help does not wait for torch

    place = locate(model)
    if place.is_file() and place != Path(model):
        typer.echo(f"(taking {place.name})", err=True)
    return place


def check_png(out: Path | None) -> None:
    """Raises ConfigError for an --out whose name is not a PNG's: the plots are."""
    if out is not None and out.suffix != ".png":
        raise ConfigError(f"--out {out}: the plot is a PNG. Give a name that ends in .png.")


def standard_input() -> str:
    """All of standard input as text. Raises RequestError where it is not UTF-8."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text ({error.reason}). Convert it (iconv) first.") from error


def table(*columns: str, rows: list[tuple[Any, ...]]) -> Table:
    """A plain table for the terminal; what its rows are named by, in the first column, is never cut."""
    first, *others = columns
    drawn = Table(
        Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others), box=None, pad_edge=False
    )
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    return drawn


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value
