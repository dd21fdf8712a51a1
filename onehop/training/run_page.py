"""report.html of a run, also while it goes on: its numbers in words, and when it is worth being written."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from onehop.base.units import counted, human_count, human_flops, human_time
from onehop.config.origins import leaves
from onehop.data.report import report_lines
from onehop.training.page import Page, Tile
from onehop.training.page_pictures import pictures
from onehop.training.took import Took
from onehop.training.trainer import Trainer
from onehop.training.unchanged import machine

FIRST = 10.0  # seconds of a run before which its page waits for the end
SHARE = 20  # the page takes at most one part in so many of the time


class RunPage:
    """The page of one call of `train`. best: the lowest loss that there can be, where it is known."""

    def __init__(self, trainer: Trainer, took: Took, *, best: float | None):
        self.trainer, self.took, self.best = trainer, took, best
        self._due, self._machine = time.perf_counter() + FIRST, machine(trainer.device)

    def now_and_then(self) -> None:
        """Write it if that was long enough ago for what it took."""
        if time.perf_counter() >= self._due:
            began = time.perf_counter()
            self.write(f"running: step {self.trainer.progress.step} of {self.trainer.recipe.train.steps}")
            ended = time.perf_counter()
            self._due = ended + max(FIRST, SHARE * (ended - began))

    def write(self, state: str) -> None:
        """Write it. state: how the run stands."""
        t, samples = self.trainer, self.trainer.out / "samples.txt"
        told, rows = t.provenance(), t.metrics.rows
        folded: dict[str, str | Mapping[str, Any]] = {}
        if samples.exists():
            folded["samples over time"] = samples.read_text(encoding="utf-8", errors="replace")
        folded |= {"recipe": leaves(t.recipe), "machine": told["versions"] | self._machine}
        rest = {key: value for key, value in told.items() if key != "recipe"}
        folded["all numbers, as provenance.json has them"] = json.dumps(rest, indent=1, ensure_ascii=False)
        drawn = pictures(rows, best=self.best, clip=t.recipe.train.clip, layers=layers_with_experts(t))
        page = Page(t.out.name, state, list(self._tiles(rows)), dict(self._facts(told)), drawn, folded)
        page.write(t.out / "report.html")

    def _tiles(self, rows: list[dict[str, Any]]) -> Iterator[Tile]:
        t, p, model = self.trainer, self.trainer.progress, self.trainer.recipe.model
        held = [(row["val_loss"], row["step"]) for row in rows if row.get("val_loss") is not None]
        if held:
            best = "" if self.best is None else f"; best possible {self.best:.3f}"
            yield Tile("validation loss", f"{held[-1][0]:.3f}", f"nats per token, after step {held[-1][1]}{best}")
        steps = f"targets learned from, in {p.step} of {t.recipe.train.steps} steps"
        yield Tile("tokens", human_count(p.tokens), steps)
        rate = self.took.tokens_per_s
        yield Tile("time", human_time(p.seconds), "in steps" + (f", {human_count(rate)} tokens/s" if rate else ""))
        n = sum(parameter.numel() for parameter in t.model.parameters())
        yield Tile("model", human_count(n), f"parameters, {counted(model.n_layers, 'layer')} of width {model.d_model}")
        kind, _, name = self._machine["device"].partition(", ")
        threads = counted(self._machine["threads"], "thread")
        yield Tile("machine", threads if kind == "cpu" else kind.upper(), name)

    def _facts(self, told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """What the run's provenance says, in words."""
        t, p = self.trainer, self.trainer.progress
        yield "text", f"{told['text']}; {t.loader.summary()}"
        for line in data_lines(t):
            name, _, text = line.strip().partition(": ")
            yield name, text
        if p.best_val_loss is not None:
            yield "lowest validation loss", f"{p.best_val_loss:.4g} nats per token, after step {p.best_step}"
        yield "optimizer", "; ".join(map(_moved, told["optimizer"]))
        yield "time of this call", str(self.took)
        if (speed := told.get("speed", {})).get("flops_per_s"):
            share = f", {speed['mfu']:.1%} of the peak (MFU)" if "mfu" in speed else ""
            yield "FLOPs of the model", f"{human_flops(speed['flops_per_s'])}/s{share}"
        if peak := told.get("peak"):
            size = f"two matrices of {peak['width']} × {peak['width']} in {peak['dtype']}"
            yield "peak of the machine", f"{human_flops(peak['flops_per_s'])}/s, measured on {size}"
        if planned := told.get("planned"):
            yield "planned and taken", planned
        if answers := told.get("understanding"):
            yield "held-out questions", ", ".join(f"{kind}: {share:.1%} right" for kind, share in answers.items())


def _moved(group: Mapping[str, Any]) -> str:
    """A group of the optimizer's summary."""
    share = "" if group["lr_share"] == 1 else f", {group['lr_share']:.3g} of the rate"
    name = {"adamw": "AdamW", "muon": "Muon"}[group["optimizer"]]
    weights = f"{human_count(group['weights'])} weights in {', '.join(group['roles'])}"
    return f"{name}: {weights} (decay {group['weight_decay']:g}{share})"


def layers_with_experts(trainer: Trainer) -> list[str]:
    """The names of the layers that have a row in `expert_load`, an encoder's last."""
    model = trainer.model
    own = [str(i) for i, block in enumerate(model.config.layers()) if block.ffn.kind == "moe"]
    if model.config.encoder is None:
        return own
    return own + [f"{i} (encoder)" for i, block in enumerate(model.config.encoder.layers()) if block.ffn.kind == "moe"]


def data_lines(trainer: Trainer) -> list[str]:
    """What became of the text, for people; of examples their loader's summary says it all."""
    return list(report_lines(trainer.data_report)) if "sources" in trainer.data_report else []
