"""report.html: all about a run on one page that needs no network: curves, samples, experts, recipe, text, machine."""

import html
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onehop.base.files import atomic_write

Rows = Sequence[Mapping[str, Any]]
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}td:first-child{color:#666}"
    "pre{white-space:pre-wrap;background:#f6f6f4;padding:.6rem;border-radius:4px}summary{cursor:pointer}"
)


def write_page(
    path: Path,
    rows: Rows,
    *,
    title: str,
    facts: Mapping[str, Any],
    recipe: Mapping[str, Any],
    machine: Mapping[str, Any],
    samples: str,
    best: float | None,
) -> None:
    """Write the page of a run: `facts` in words, lines of metrics.jsonl, the best possible loss where it is known."""
    parts = [f"<h1>{html.escape(title)}</h1>", _table(facts), *_pictures(rows, best)]
    if samples:
        parts.append(_folded("samples over time", f"<pre>{html.escape(samples)}</pre>"))
    parts += [_folded("recipe", _table(recipe)), _folded("machine", _table(machine))]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    atomic_write(path, f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n')


def _pictures(rows: Rows, best: float | None) -> Iterator[str]:
    def losses(axes: Any) -> None:
        _line(axes, rows, "loss", label="training", color="#9bb8d3")
        _line(axes, rows, "val_loss", label="validation", color="#1f5a99", marker="o", markersize=3)
        _line(axes, rows, "ema_val_loss", label="validation of the average", color="#3d8b5f")
        if best is not None:
            axes.axhline(best, color="#b5442e", linestyle="--", linewidth=1, label="best possible")
        if axes.lines:
            axes.legend()

    yield _picture("loss (nats per token)", losses)
    yield _picture("learning rate", lambda axes: _line(axes, rows, "lr"))
    yield _picture("tokens per second", lambda axes: _line(axes, rows, "tokens_per_s"))
    yield _picture("gradient norm before clipping", lambda axes: _line(axes, rows, "grad_norm"))
    norms = [row for row in rows if row.get("grad_norms")]
    if norms:
        names = list(norms[-1]["grad_norms"])
        table = [[row["grad_norms"].get(name) or np.nan for row in norms] for name in names]
        table = np.log10(np.array(table, dtype=float)).tolist()
        yield _picture("gradient norm by layer (log 10)", lambda axes: _heat(axes, norms, table, names))
    loads = [row for row in rows if row.get("expert_load")]
    if loads:
        names = [f"{i}·{e}" for i, layer in enumerate(loads[-1]["expert_load"]) for e in range(len(layer))]
        shares = [[share for layer in row["expert_load"] for share in layer] for row in loads]
        turned = [list(column) for column in zip(*shares, strict=True)]
        yield _picture(
            "share of each expert (layer with experts · expert)", lambda axes: _heat(axes, loads, turned, names)
        )
        yield _picture("entropy of the experts' shares (1: even)", lambda axes: _entropies(axes, loads))


def _line(axes: Any, rows: Rows, key: str, **style: Any) -> None:
    """One number of the lines against the step."""
    points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **({"linewidth": 1, "color": "#1f5a99"} | style))


def _entropies(axes: Any, rows: Rows) -> None:
    for i in range(len(rows[-1]["expert_entropy"])):
        axes.plot([row["step"] for row in rows], [row["expert_entropy"][i] for row in rows], linewidth=1, label=str(i))
    axes.legend(title="layer", ncols=4, fontsize=7)


def _heat(axes: Any, rows: Rows, table: Sequence[Sequence[float]], names: Sequence[str]) -> None:
    """Rows of numbers as colours, the steps from left to right."""
    steps = [row["step"] for row in rows]
    mesh = axes.pcolormesh(range(len(steps) + 1), range(len(names) + 1), table, cmap="viridis", rasterized=True)
    shown = np.linspace(0, len(steps) - 1, min(6, len(steps))).astype(int)
    axes.set_xticks(shown + 0.5, [str(steps[i]) for i in shown])
    places = np.linspace(0, len(names) - 1, min(24, len(names))).astype(int)
    axes.set_yticks(places + 0.5, [names[i] for i in places], fontsize=7)
    axes.invert_yaxis()
    axes.figure.colorbar(mesh, ax=axes)


def _picture(title: str, draw: Callable[[Any], None]) -> str:
    """A drawing as SVG inside the page."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(9, 3))
    axes = figure.subplots()
    draw(axes)
    axes.set(xlabel="step")
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    return f"<h2>{html.escape(title)}</h2>{file.getvalue()[file.getvalue().index('<svg') :]}"


def _table(values: Mapping[str, Any]) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in values.items()}
    lines = (f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in shown.items())
    return f"<table>{''.join(lines)}</table>"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary><b>{html.escape(title)}</b></summary>{inside}</details>"
