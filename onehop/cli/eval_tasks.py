"""`onehop eval MODEL --tasks …`: lm-eval's tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onehop.base.errors import RequestError
from onehop.cli.common import machines, people, table
from onehop.lm import LanguageModel
from onehop.lm.harness import need_lm_eval, run_tasks

Tasks = Annotated[str | None, typer.Option(help="tasks of lm-eval instead of a text: arc_easy,hellaswag (extra eval)")]
IncludePath = Annotated[Path | None, typer.Option(help="with --tasks: a folder with tasks of your own, as YAML")]
Limit = Annotated[int | None, typer.Option(help="with --tasks: documents of each task")]
Shots = Annotated[int | None, typer.Option(help="with --tasks: solved examples before each question")]


def refuse(given: Mapping[str, Any], *, for_tasks: bool) -> None:
    """Refuse options that the question does not listen to: those of tasks where a text is read, or the other way."""
    for name in (name for name, value in given.items() if value is not None):
        flag = f"--{name.replace('_', '-')}"
        raise RequestError(f"{flag} {'needs' if for_tasks else 'has no effect with'} --tasks. Leave it out.")


def names_of(tasks: str, *, include_path: Path | None, limit: int | None, num_fewshot: int | None) -> list[str]:
    """The tasks by name; refuses what cannot be run, before a model is loaded for it."""
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise RequestError(f"--tasks {tasks!r} names no task. Give one or more: --tasks arc_easy,hellaswag")
    for flag, value, least in (("--limit", limit, 1), ("--num-fewshot", num_fewshot, 0)):
        if value is not None and value < least:
            raise RequestError(f"{flag} {value} must be a whole number, {least} or more")
    need_lm_eval(include_path)
    return names


def tell_tasks(lm: LanguageModel, names: list[str], *, json: bool, **how: Any) -> None:
    """Run the tasks and print what came out."""
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
