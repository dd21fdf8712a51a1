"""`onehop eval MODEL --tasks …`: lm-eval's tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onehop.base.errors import RequestError
from onehop.cli.common import machines, people, table
from onehop.lm import LanguageModel
from onehop.lm.harness import run_tasks

Tasks = Annotated[str | None, typer.Option(help="tasks of lm-eval instead of a text: arc_easy,hellaswag (extra eval)")]
IncludePath = Annotated[Path | None, typer.Option(help="with --tasks: a folder with tasks of your own, as YAML")]
Limit = Annotated[int | None, typer.Option(help="with --tasks: documents of each task")]
Shots = Annotated[int | None, typer.Option(help="with --tasks: solved examples before each question")]


def refuse(given: Mapping[str, Any], *, for_tasks: bool) -> None:
    """Refuse options that the question does not listen to: those of tasks where a text is read, or the other way."""
    for name in (name for name, value in given.items() if value is not None):
        flag = f"--{name.replace('_', '-')}"
        raise RequestError(f"{flag} {'needs' if for_tasks else 'has no effect with'} --tasks. Leave it out.")


def tell_tasks(lm: LanguageModel, tasks: str, *, json: bool, **how: Any) -> None:
    """Run the tasks and print what came out."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    found = run_tasks(lm, names, **how)
    if json:
        machines(found)
    people(json).print(table("task", "metric", "value", "standard error", rows=_rows(found["results"])))


def _rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """One row for each number of lm-eval's tables, whose keys are 'metric,filter'."""
    out = []
    for task, numbers in results.items():
        for key, value in numbers.items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr"):
                error = numbers.get(f"{metric}_stderr,{kind}")
                name = metric if kind == "none" else f"{metric} ({kind})"
                out.append((task, name, f"{value:.4f}", f"{error:.4f}" if isinstance(error, float) else ""))
    return out
