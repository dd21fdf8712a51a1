"""comparison.png: the curves of a comparison, its last losses, and of sizes at several budgets loss against size."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onehop.base.files import atomic_file
from onehop.base.units import human_count, human_flops
from onehop.training.compare_table import Line, Result
from onehop.training.report import in_words, read_metrics

AXES = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds of training"}
BUDGET = "train.steps"  # swept, it sets budgets (`config/sweep.py`)
NAMED = re.compile(r",(?=[\w.]+=)")  # between the keys of a swept recipe's name


def draw(out: Path, found: Sequence[Line], results: Sequence[Result], *, equal: str, unit: str) -> None:
    """Left the curves, a line for each recipe and a band from the best to the worst seed; then the last scores.

    Where sizes were swept at several budgets of FLOPs, a third picture has the loss against the size.
    """
    import matplotlib.figure

    curves = by_budget(found) if equal == "flops" else []
    size = (16 if curves else 11, max(4.5, 1 + 0.28 * len(found)))
    figure = matplotlib.figure.Figure(figsize=size, dpi=120, layout="constrained")
    axes = figure.subplots(1, 3 if curves else 2, width_ratios=(3, 2, 2.5)[: 3 if curves else 2])
    for i, line in enumerate(found):
        runs = [_curve(out, result, equal) for result in results if result.name == line.name]
        _draw_curves(axes[0], [run for run in runs if len(run)], f"C{i % 10}")
    axes[0].set(xlabel=AXES[equal], ylabel=f"validation loss ({unit})")
    if equal != "time":
        axes[0].xaxis.set_major_formatter(lambda x, _: human_count(x))
    _draw_scores(axes[1], found, unit)
    if curves:
        _draw_isoflops(axes[2], curves, unit)
    for each in axes:
        each.grid(alpha=0.25)
    with atomic_file(out / "comparison.png") as temporary:
        figure.savefig(temporary, format="png")


def _draw_scores(axes: Any, found: Sequence[Line], unit: str) -> None:
    """A row for each recipe, named in its curve's colour: its seeds, their mean, one standard deviation around it."""
    for i, line in enumerate(found):
        color = f"C{i % 10}"
        axes.plot(list(line.scores.values()), [i] * len(line.scores), "o", color=color, alpha=0.4, markersize=4)
        if line.mean is not None:
            axes.errorbar(line.mean, i, xerr=line.spread, fmt="|", color=color, markersize=10, capsize=3)
    axes.set_yticks(range(len(found)), map(in_words, short_names([line.name for line in found])), fontsize=8)
    for i, label in enumerate(axes.get_yticklabels()):
        label.set_color(f"C{i % 10}")
    axes.set_ylim(len(found) - 0.5, -0.5)
    spread = "\nmean and standard deviation" if any(line.spread is not None for line in found) else ""
    axes.set(xlabel=f"last validation loss ({unit}){spread}")


def by_budget(found: Sequence[Line]) -> list[list[Line]]:
    """What was trained with each budget, from the smallest size on; [] for less than two budgets or sizes."""
    groups: dict[str, list[Line]] = {}
    for line in found:
        if (steps := _keys(line.name).get(BUDGET)) is not None and line.mean is not None and line.flops is not None:
            groups.setdefault(steps, []).append(line)
    sizes = [len({line.n_params for line in lines}) for lines in groups.values()]
    if len(groups) < 2 or min(sizes) < 2:
        return []
    return [sorted(lines, key=lambda line: line.n_params) for lines in groups.values()]


def _draw_isoflops(axes: Any, curves: Sequence[Sequence[Line]], unit: str) -> None:
    """A curve for each budget: its lowest place is the size that it is best spent on (Hoffmann et al. 2022, fig. 3)."""
    for i, lines in enumerate(curves):
        budget = human_flops(float(np.mean([line.flops for line in lines])))
        x, y = [line.n_params for line in lines], [line.mean for line in lines]
        spread = [line.spread or 0.0 for line in lines]
        grey = str(0.65 * (1 - i / (len(curves) - 1)))  # the colours stand for recipes
        shade = {"color": grey, "marker": "o", "markersize": 4, "linewidth": 1, "capsize": 3}
        axes.errorbar(x, y, yerr=spread if any(spread) else None, label=budget, **shade)
    sizes = sorted({line.n_params for lines in curves for line in lines})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [human_count(n) for n in sizes])
    axes.minorticks_off()
    axes.set(xlabel="parameters", ylabel=f"last validation loss ({unit})", title="loss against size, by FLOPs of a run")
    axes.legend(fontsize=8)


def short_names(names: Sequence[str]) -> list[str]:
    """Names of swept recipes without what all share, what follows from another key, and what leads to a key.

    'model.d_model=64,model.ffn.d_ff=172,train.lr=1e-3' -> 'd_model=64 lr=1e-3'. Names that are no keys stay.
    """
    tables = [_keys(name) for name in names]
    if len(names) < 2 or not all(tables) or any(table.keys() != tables[0].keys() for table in tables):
        return list(names)
    columns = {key: tuple(table[key] for table in tables) for key in tables[0]}
    kept: dict[str, tuple[str, ...]] = {}
    for key, values in columns.items():
        changes = len(set(values)) > 1
        if changes and not any(len(set(zip(values, other, strict=True))) == len(set(other)) for other in kept.values()):
            kept[key] = values
    last = [key.rpartition(".")[2] for key in kept]
    heads = {key: end if last.count(end) == 1 else key for key, end in zip(kept, last, strict=True)}
    return [" ".join(f"{heads[key]}={values[i]}" for key, values in kept.items()) for i in range(len(names))]


def _keys(name: str) -> dict[str, str]:
    """Keys and values of a swept recipe's name; {} of another's."""
    words = [word.partition("=") for word in NAMED.split(name)]
    return {key: value for key, _, value in words} if all(mark for _, mark, _ in words) else {}


def _draw_curves(axes: Any, curves: Sequence[np.ndarray], color: str) -> None:
    """The mean over seeds, at the places that all of them were evaluated at."""
    if not curves:
        return
    n = min(map(len, curves))
    table = np.stack([curve[:n] for curve in curves])  # (seeds, n, 2)
    x = table[..., 0].mean(axis=0)
    axes.plot(x, table[..., 1].mean(axis=0), color=color, marker="o", markersize=2, linewidth=1)
    axes.fill_between(x, table[..., 1].min(axis=0), table[..., 1].max(axis=0), color=color, alpha=0.2, linewidth=0)


def _curve(out: Path, result: Result, equal: str) -> np.ndarray:
    """(n, 2): what was spent, and the validation loss; steps of one run cost the same."""
    rows = [row for row in read_metrics(out / result.folder / "metrics.jsonl") if row.get("val_loss") is not None]
    whole = {"tokens": result.tokens, "flops": result.flops or 0.0, "time": result.seconds}[equal]
    spent = [row["tokens"] / max(result.tokens, 1) * whole for row in rows]
    scale = result.score / result.val_loss if result.score and result.val_loss else 1.0
    return np.array([(x, row["val_loss"] * scale) for x, row in zip(spent, rows, strict=True)]).reshape(-1, 2)
