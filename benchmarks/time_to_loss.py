"""Validation loss against seconds of training on a CPU: onehop's recipe beside nanoGPT's, on characters of a text.

nanoGPT's recipe for a CPU is written down once more (a GPT-2 block in float32, 4 layers of 128, rows of 12 × 64 random
places, AdamW 1e-3 to 1e-4 by a cosine over 2000 steps, no dropout); onehop's is `runs/shakespeare-fast.toml`, once per
seed. All train in turn, some steps each, so that a busy machine slows all alike; only steps are timed. Scored is the
whole last tenth of the text, in rows of each one's own context. Writes benchmarks/results/time_to_loss.json and a
picture.

python benchmarks/time_to_loss.py tinyshakespeare.txt [--seeds 3] [--threads 2] [key=value …]
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from train_cpu import Plain, Size, machine

from onehop.config.read import read
from onehop.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
SIZE = Size(layers=4, heads=4, width=128, context=64, rows=12)
STEPS, WARMUP, LR, LR_END = 2000, 100, 1e-3, 1e-4
CHUNK = 50  # steps in a turn; the loss is measured after each
GOALS = (1.919, 1.80)


class Contestant:
    """A training run that advances by turns: its seconds so far, and (seconds, step, validation loss) after each."""

    def __init__(self, name: str):
        self.name, self.seconds, self.step = name, 0.0, 0
        self.curve: list[tuple[float, int, float]] = []

    def turn(self) -> bool:
        """Some steps, timed, and a score. False: the run is over."""
        steps = self.steps
        for _ in range(CHUNK):
            began = time.perf_counter()
            if next(steps, None) is None:
                break
            self.seconds += time.perf_counter() - began
            self.step += 1
        else:
            self.curve.append((round(self.seconds, 2), self.step, round(self.score(), 4)))
            return True
        if not self.curve or self.curve[-1][1] != self.step:
            self.curve.append((round(self.seconds, 2), self.step, round(self.score(), 4)))
        return False

    def reached(self, goal: float) -> float | None:
        """Seconds until the loss was at most this, between two scores as the straight line has it."""
        before = (0.0, 0, math.inf)
        for point in self.curve:
            if point[2] <= goal:
                share = 1.0 if math.isinf(before[2]) else (before[2] - goal) / (before[2] - point[2])
                return round(before[0] + share * (point[0] - before[0]), 1)
            before = point
        return None


class NanoGPT(Contestant):
    """GPT-2's arithmetic and nanoGPT's recipe."""

    def __init__(self, text: str, seed: int = 0):
        super().__init__("nanoGPT's recipe")
        torch.manual_seed(seed)
        ids = {c: i for i, c in enumerate(sorted(set(text)))}
        data = torch.tensor([ids[c] for c in text])
        cut = int(len(data) * 0.9)
        self.train, self.validation = data[:cut], data[cut:]
        self.model = Plain(SIZE)
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        rest = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = self._steps()

    def _steps(self) -> Iterator[float]:
        t = SIZE.context
        for index in range(STEPS):
            rising, falling = index / WARMUP, (index - WARMUP) / (STEPS - WARMUP)
            cosine = LR_END + 0.5 * (1 + math.cos(math.pi * falling)) * (LR - LR_END)
            for group in self.optimizer.param_groups:
                group["lr"] = LR * rising if index < WARMUP else cosine
            starts = torch.randint(len(self.train) - t, (SIZE.rows,), generator=self.generator).tolist()
            rows = torch.stack([self.train[s : s + t + 1] for s in starts])
            loss = F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            yield loss.item()

    @torch.no_grad()
    def score(self) -> float:
        t, n = SIZE.context, (len(self.validation) - 1) // SIZE.context
        tokens, targets = self.validation[: n * t].view(n, t), self.validation[1 : n * t + 1].view(n, t)
        losses = [
            F.cross_entropy(self.model(a).flatten(0, 1), b.flatten(), reduction="sum")
            for a, b in zip(tokens.split(64), targets.split(64))
        ]
        return float(torch.stack(losses).sum()) / (n * t)


class Onehop(Contestant):
    """The shipped recipe."""

    def __init__(self, file: Path, folder: Path, seed: int, overrides: list[str]):
        super().__init__(f"onehop, seed {seed}")
        everything = f"train.eval_rows={10**6}"
        fixed = {"data.files": str(file), "out": str(folder / str(seed)), "train.seed": seed}
        recipe = read("shakespeare-fast", [*(f"{k}={v}" for k, v in fixed.items()), everything, *overrides]).recipe
        self.trainer = Trainer(recipe)
        self.parameters = sum(p.numel() for p in self.trainer.model.parameters())
        self.steps = self.trainer.steps()

    def score(self) -> float:
        return self.trainer.evaluate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("overrides", nargs="*", help="keys of the recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "time_to_loss.json")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        ours = [Onehop(asked.text, Path(folder), seed, asked.overrides) for seed in range(asked.seeds)]
        contestants = [NanoGPT(asked.text.read_text()), *ours]
        running = list(contestants)
        while running:
            running = [c for c in running if c.turn()]
            print(*(f"{c.name}: {c.seconds:.1f} s {c.curve[-1][2]:.3f}" for c in contestants), sep="   ", flush=True)
    report(contestants, asked.out)


def report(contestants: list[Contestant], out: Path) -> None:
    """Say, keep and draw what was found."""
    first = contestants[0]
    found = {
        "machine": machine(),
        "parameters": {
            first.name: sum(p.numel() for p in first.model.parameters()),
            "onehop": contestants[1].parameters,
        },
        "recipe": contestants[1].trainer.recipe.model_dump(mode="json", exclude={"out", "about"}),
        "nanoGPT_seconds": round(first.seconds, 1),
        "reached": {c.name: {str(goal): c.reached(goal) for goal in GOALS} for c in contestants},
        "last": {c.name: c.curve[-1] for c in contestants},
        "curves": {c.name: c.curve for c in contestants},
    }
    found["recipe"]["data"]["files"] = [Path(f).name for f in found["recipe"]["data"]["files"]]
    for name, goals in found["reached"].items():
        print(name, goals, found["last"][name])
    out.write_text(json.dumps(found) + "\n")
    draw(found["curves"], ROOT / "docs" / "pictures" / "time_to_loss.png")


def draw(curves: dict[str, list[tuple[float, int, float]]], file: Path) -> None:
    """Loss against seconds; the first curve is the other's, the rest are onehop's, one per seed."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        seconds, _, losses = zip(*curve)
        label = {0: name, 1: "onehop, one line per seed"}.get(number)
        axes.plot(seconds, losses, color="tab:gray" if number == 0 else "tab:blue", alpha=0.8, label=label)
    axes.set(xlabel="seconds of training", ylabel="validation loss, nats per character", ylim=(1.4, 2.6))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
