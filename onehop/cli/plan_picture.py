"""The plot of a sweep."""

from collections.abc import Sequence
from pathlib import Path

from onehop.base.files import atomic_file
from onehop.cost.what_if import Figures

# what is drawn: its name, and how a figure becomes a number of the named unit
DRAWN = (
    ("parameters (billions)", lambda f: f.params / 1e9),
    ("cache (GB)", lambda f: f.kv_bytes / 1e9),
    ("memory to serve (GB)", lambda f: f.inference_bytes / 1e9),
    ("training, GFLOP per token", lambda f: f.train_flops_per_token / 1e9),
)


def draw_sweep(key: str, rows: Sequence[tuple[str, Figures]], path: Path) -> None:
    """Draw parameters, cache, memory and FLOPs over the values of a key into a PNG."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(9, 6), dpi=120, layout="constrained")
    places = range(len(rows))
    for i, (name, number) in enumerate(DRAWN):
        axes = figure.add_subplot(2, 2, i + 1)
        axes.bar(places, [number(f) for _, f in rows], color="#1f5a99")
        axes.set_xticks(places, [value for value, _ in rows])
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.25, axis="y")
    figure.suptitle(key)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")
