"""The pictures of report.html: one frame for all, so that their steps stand below each other; words stay text."""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from onehop.base.units import human_bytes, human_count
from onehop.training.report import in_words, log_scale

Rows = Sequence[Mapping[str, Any]]
MOST = 800  # points of a curve; of more, neighbours are drawn as their mean, in a band from the lowest to the highest
COLUMNS = 400  # steps of a picture in colours
WIDTH, LEFT, RIGHT, BOTTOM, TOP = 9.0, 0.85, 1.95, 0.45, 0.1  # inches: of the picture, and around its frame
LINES = 24  # names beside a picture in colours
INK, GRID = "#010203", "#040506"  # stand for the page's own colours, which are dark or light
THEIRS = {INK: "currentColor", GRID: "var(--line)"}
PALE, BLUE, GREEN, RED, ORANGE = "#8fb4dc", "#3f7fc6", "#3d9a68", "#cf5a3f", "#d08a1d"
MARKS = (  # key of a line, how it is marked, its colour, and what it says
    ("skipped", "x", RED, "step skipped"),
    ("spike", "^", ORANGE, "loss jumped"),
    ("dead_experts", "s", "#888888", "expert idle"),
)


class Picture(NamedTuple):
    """A picture of a page: its title, and itself as SVG."""

    title: str
    svg: str


class Frame:
    """A picture that is being drawn: axes over the run's steps, with a margin to the right for what explains it."""

    def __init__(self, title: str, label: str, *, last: int, height: float = 1.8):
        import matplotlib.figure

        self.title, self.figure = title, matplotlib.figure.Figure(figsize=(WIDTH, height + BOTTOM + TOP))
        self._width, self._bottom, self._height = WIDTH - LEFT - RIGHT, BOTTOM, height
        self.axes = self._axes(LEFT, self._width)
        self.axes.set(xlabel="step", ylabel=label, xlim=(0, max(last, 1)))
        self.axes.grid(color=GRID, linewidth=0.6)
        self.axes.set_axisbelow(True)

    def _axes(self, left: float, width: float) -> Any:
        whole = self._height + BOTTOM + TOP
        axes = self.figure.add_axes((left / WIDTH, self._bottom / whole, width / WIDTH, self._height / whole))
        axes.patch.set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(GRID)
        return axes

    def line(self, rows: Rows, key: str, **style: Any) -> None:
        """One number of the lines against the step; nothing where no line has it."""
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            self.curve(np.array(points, dtype=float), **style)

    def curve(self, points: np.ndarray, *, color: str = BLUE, **style: Any) -> None:
        """(n, 2): steps, and what was there."""
        size = math.ceil(len(points) / MOST)
        x, mean, low, high = thinned(points, size)
        self.axes.plot(x, mean, **({"linewidth": 1.2, "color": color} | style))
        if size > 1:
            self.axes.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)

    def level(self, height: float, label: str) -> None:
        """A height that says how to read the curve."""
        self.axes.axhline(height, color=RED, linestyle="--", linewidth=1, label=label)

    def marks(self, rows: Rows) -> None:
        """Alarms, at their steps, along the lower edge."""
        for key, marker, color, label in MARKS:
            if steps := [row["step"] for row in rows if row.get(key)]:
                place = {"transform": self.axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
                style: dict[str, Any] = {"marker": marker, "color": color, "markersize": 5, **place}
                self.axes.plot(steps, [0.0] * len(steps), label=f"{label} ({len(steps)})", **style)

    def units(self, written: Callable[[float], str]) -> None:
        """Numbers of the upright axis as `written` has them."""
        self.axes.yaxis.set_major_formatter(lambda y, place: written(y))

    def heat(self, steps: Sequence[int], table: np.ndarray, label: str) -> None:
        """(rows, steps) as colours, each from its step to the next; what is no number stays empty."""
        edges = [0, *((a + b) / 2 for a, b in pairwise(steps)), steps[-1]]
        mesh = self.axes.pcolormesh(edges, range(len(table) + 1), table, cmap="viridis", rasterized=True)
        self.axes.invert_yaxis()
        self.axes.grid(visible=False)
        bar = self.figure.colorbar(mesh, cax=self._axes(LEFT + self._width + 0.12, 0.13))
        bar.set_label(label, color=INK, fontsize=8)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, colors=INK, width=0.6)

    def done(self, name: str) -> Picture:
        """The picture; `name` begins its ids, so that those of two pictures of a page differ."""
        axes = self.axes
        if axes.get_legend_handles_labels()[0]:
            beside = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.03), "frameon": False}
            axes.legend(fontsize=8, labelcolor=INK, handlelength=1.4, **beside)
        axes.minorticks_off()
        axes.tick_params(labelsize=8, colors=INK, width=0.6)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(color=INK, fontsize=8)
        axes.yaxis.set_label_coords(-0.62 / self._width, 0.5)
        return Picture(self.title, _svg(self.figure, name))


def thinned(points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(n, 2) -> of each `size` points in a row: where they are on average, their mean, lowest and highest."""
    starts = np.arange(0, len(points), size)
    counts = np.diff([*starts, len(points)])
    x, y = points.T
    mean = np.add.reduceat(y, starts) / counts
    return (
        np.add.reduceat(x, starts) / counts,
        mean,
        np.minimum.reduceat(y, starts),
        np.maximum.reduceat(y, starts),
    )


def pictures(rows: Rows, *, best: float | None, clip: float | None = None, layers: Sequence[str] = ()) -> list[Picture]:
    """What the lines of a metrics.jsonl tell.

    best: the lowest loss that there can be; clip: of the gradient's norm; layers: the names of those with experts.
    """
    if not rows:
        return []
    last = rows[-1]["step"]
    drawn = [_losses(rows, last, best), *_steps(rows, last, clip), *_machine(rows, last), *_experts(rows, last, layers)]
    return [frame.done(f"picture{i}") for i, frame in enumerate(drawn)]


def _losses(rows: Rows, last: int, best: float | None) -> Frame:
    frame = Frame("Loss", "nats per token", last=last, height=2.6)
    frame.line(rows, "loss", label="training", color=PALE)
    frame.line(rows, "val_loss", label="validation", marker="o", markersize=3)
    frame.line(rows, "ema_val_loss", label="validation of the average", color=GREEN, marker="o", markersize=3)
    if best is not None:
        frame.level(best, f"best possible ({best:.3f})")
    keys = ("loss", "val_loss", "ema_val_loss")
    log_scale(frame.axes, [row[key] for row in rows for key in keys if row.get(key) is not None] + [best or math.inf])
    frame.marks(rows)
    return frame


def _steps(rows: Rows, last: int, clip: float | None) -> Iterator[Frame]:
    """Of the optimizer's steps: rate and gradients."""
    frame = Frame("Learning rate", "rate", last=last, height=1.2)
    frame.line(rows, "lr")
    frame.units("{:g}".format)
    yield frame
    frame = Frame("Gradient before clipping", "norm", last=last)
    frame.line(rows, "grad_norm")
    norms = [row["grad_norm"] for row in rows if row.get("grad_norm")]
    if norms and clip and clip <= 1.5 * max(norms):  # further up it would flatten the curve
        frame.level(clip, f"clipped above {clip:g}")
    log_scale(frame.axes, norms)
    frame.marks(rows)
    yield frame
    if norms_of := [row for row in picked(rows, "grad_norms") if row["grad_norms"]]:
        names = list(norms_of[-1]["grad_norms"])
        table = [[row["grad_norms"].get(name) or np.nan for row in norms_of] for name in names]
        frame = Frame("Gradient by layer", "", last=last, height=max(1.2, 0.15 * min(len(names), LINES)))
        frame.heat([row["step"] for row in norms_of], np.log10(np.array(table, dtype=float)), "norm (log 10)")
        places = np.linspace(0, len(names) - 1, min(LINES, len(names))).astype(int)
        frame.axes.set_yticks(places + 0.5, [in_words(names[i].replace("layers.", "layer ")) for i in places])
        yield frame


def _machine(rows: Rows, last: int) -> Iterator[Frame]:
    """Of the machine: speed, use and memory."""
    frame = Frame("Speed", "tokens per second", last=last, height=1.2)
    frame.line(rows, "tokens_per_s")
    frame.units(human_count)
    frame.axes.set_ylim(bottom=0)
    yield frame
    for key, title, label, written in (
        ("mfu", "Share of the machine's peak that the model's FLOPs take (MFU)", "MFU", "{:.0%}".format),
        ("memory", "Memory: most that was held so far", "memory", human_bytes),
    ):
        if any(row.get(key) is not None for row in rows):
            frame = Frame(title, label, last=last, height=1.2)
            frame.line(rows, key)
            frame.units(written)
            frame.axes.set_ylim(bottom=0)
            yield frame


def _experts(rows: Rows, last: int, layers: Sequence[str]) -> Iterator[Frame]:
    """Of layers with experts, where there are any: who takes how much, how even it is, how undecided the routers."""
    if loads := picked(rows, "expert_load"):
        n_layers = len(loads[-1]["expert_load"])
        names = layers if len(layers) == n_layers else [str(i) for i in range(n_layers)]
        yield _loads(loads, last, names)
        frame = Frame("Evenness of the experts' shares (1: even)", "entropy / highest", last=last)
        for i, name in enumerate(names):
            points = [(row["step"], row["expert_entropy"][i]) for row in rows if row.get("expert_entropy")]
            few: dict[str, Any] = {"color": f"C{i}", "label": f"layer {name}"} if len(names) <= 10 else {}
            frame.curve(np.array(points, dtype=float), **few)
        yield frame
    if any(row.get("router_entropy") is not None for row in rows):
        frame = Frame("Indecision of the routers about a token (entropy of its scores, mean)", "nats", last=last)
        frame.line(rows, "router_entropy")
        if loads:
            n_experts = len(loads[-1]["expert_load"][0])
            frame.level(math.log(n_experts), f"all alike: ln {n_experts}")
        frame.axes.set_ylim(bottom=0)
        yield frame


def _loads(rows: Rows, last: int, names: Sequence[str]) -> Frame:
    """Experts as rows, layer below layer, in the colour of what each takes: 1 is its even share."""
    sizes = [len(layer) for layer in rows[-1]["expert_load"]]
    table = np.array([[share * len(layer) for layer in row["expert_load"] for share in layer] for row in rows]).T
    frame = Frame("Tokens of each expert, layer by layer", "", last=last, height=min(max(1.2, 0.075 * len(table)), 5.0))
    frame.heat([row["step"] for row in rows], table, "times its even share")
    borders, shown = np.cumsum([0, *sizes]), np.linspace(0, len(sizes) - 1, min(LINES, len(sizes))).astype(int)
    middles = [(borders[i] + borders[i + 1]) / 2 for i in shown]
    frame.axes.set_yticks(middles, [f"layer {names[i]}: {sizes[i]}" for i in shown])
    for border in borders[1:-1]:
        frame.axes.axhline(border, color="white", linewidth=1.5)
    return frame


def picked(rows: Rows, key: str) -> list[Mapping[str, Any]]:
    """Lines that have a key, at most COLUMNS of them."""
    found = [row for row in rows if row.get(key)]
    return found[:: math.ceil(len(found) / COLUMNS)] if found else []


def _svg(figure: Any, name: str) -> str:
    """A drawing as SVG inside a page, in the page's letters and colours, its ids its own."""
    import matplotlib as mpl

    file, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text[text.index("<svg") :])
    text = re.sub(r"font-family: [^;\"]*; ", "", text)
    for stands, color in THEIRS.items():
        text = text.replace(stands, color)
    return text
