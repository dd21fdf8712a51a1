"""A picture of a model's positions: wavelengths, biases over distance, and how far each layer looks."""

import math
from pathlib import Path
from typing import Any

from onehop.base.files import atomic_file
from onehop.lm.positions import Positions

FARTHEST = 256  # tokens of distance over which biases are drawn


def draw(found: Positions, path: Path) -> None:
    """Write a PNG with one panel for each thing that this model has."""
    import matplotlib.figure

    panels = [_reach]
    panels = [_wavelengths, *panels] if found.curves else panels
    panels = [_biases, *panels] if found.slopes or found.buckets else panels
    figure = matplotlib.figure.Figure(figsize=(5.6 * len(panels), 4.2), dpi=120, layout="constrained")
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0]):
        panel(axes, found)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _wavelengths(axes: Any, found: Positions) -> None:
    """Tokens per turn of each pair; above the line of the trained length a pair never turned once in training."""
    drawn = set()
    for curve in found.curves:
        key = (tuple(curve.before), str(curve.after))
        if key in drawn:
            continue
        drawn.add(key)
        (line,) = axes.plot(
            [2 * math.pi / f for f in curve.before], linestyle=":", label=f"{curve.layers}, before scaling"
        )
        for length, after in curve.after.items():
            if after != curve.before:
                axes.plot([2 * math.pi / f for f in after], label=f"{curve.layers}, in {length} tokens")
            else:
                line.set_label(f"{curve.layers}, unscaled")
                line.set_linestyle("-")
    trained = min(curve.trained for curve in found.curves)
    axes.axhline(trained, color="#777777", linewidth=0.8)
    axes.text(0, trained, f" trained: {trained}", va="bottom", fontsize=8)
    if found.max_len != trained:
        axes.axhline(found.max_len, color="#bb3333", linewidth=0.8)
        axes.text(0, found.max_len, f" extrapolation from {found.max_len}", va="bottom", fontsize=8, color="#bb3333")
    axes.set(yscale="log", xlabel="pair of dims", ylabel="tokens per turn", title="RoPE wavelengths")
    axes.legend(fontsize=7)


def _biases(axes: Any, found: Positions) -> None:
    for slope in found.slopes:
        axes.plot([0, FARTHEST], [0, -slope * FARTHEST], linewidth=0.9)
    for head in found.buckets:
        axes.plot(head[:FARTHEST], linewidth=0.9, drawstyle="steps-post")
    axes.set(xlabel="tokens of distance", ylabel="added to the score", title="bias of each head")


def _reach(axes: Any, found: Positions) -> None:
    reach = [found.max_len if w is None else min(w, found.max_len) for w in found.windows]
    colours = ["#4477aa" if w is None else "#ddaa33" for w in found.windows]
    axes.barh(range(len(reach)), reach, color=colours)
    axes.invert_yaxis()
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="tokens", ylabel="layer", title="how far a layer looks (yellow: a window)")
