"""Time and peak memory of causal attention with ALiBi on a CPU: tiles, the definition, and PyTorch's SDPA with a bias.

B = 1, 8 heads of width 64, float32. Times are medians of runs in turn in one process. Memory is what the resident set
of a process of its own grows by above its inputs (`ru_maxrss`), in one forward and backward pass. `sdpa, bias given` is
timed without laying the bias out (T × T for each head), and is what ratios are to; `sdpa, bias built` lays it out each
time; `sdpa, no bias` is PyTorch's causal kernel, for comparison: it computes something else.

python benchmarks/attention_cpu.py [--only speed] [--threads 2] [--longest 32768] [--compare-up-to 8192]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from onehop.machine.here import processor
from onehop.parts.bias import Alibi
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score_plain import plain
from onehop.parts.score_rule import ScoreRule
from onehop.parts.score_tiled import tiled
from onehop.parts.sight import Sees, Sight

ROOT = Path(__file__).resolve().parents[1]
HEADS, WIDTH = 8, 64
LABELS = {
    "tiled": "tiled",
    "plain": "plain: the definition",
    "sdpa, bias built": "SDPA with a laid-out bias",
}


class Problem:
    """Inputs of length t, and the ways to attend to them."""

    def __init__(self, t):
        generator = torch.Generator().manual_seed(t)
        self.q, self.k, self.v = (
            torch.randn(1, t, HEADS, WIDTH, generator=generator).requires_grad_() for _ in range(3)
        )
        self.dy = torch.randn(1, t, HEADS, WIDTH, generator=generator)
        self.places = Places.run(0, t)
        self.rule = ScoreRule(WIDTH**-0.5, bias=Alibi(HEADS))
        self.given = None

    def bias(self):
        """The bias with the causal mask in it, (1, H, T, T)."""
        bias = self.rule.bias(self.places.at, self.places.at)
        for start in range(0, bias.size(-1), 512):  # by rows: a mask of all of it is not what is measured
            rows = slice(start, start + 512)
            bias[:, :, rows].masked_fill_(self.places.at > self.places.at[:, rows].mT, -torch.inf)
        return bias

    def prepare(self, kind):
        """Lay the bias out where that is not to be timed."""
        if kind == "sdpa, bias given" and self.given is None:
            self.given = self.bias()

    def run(self, kind):
        """One forward pass -> (1, T, H, D)."""
        if kind in ("tiled", "plain"):
            sight = Sight(Sees("causal"), self.places, self.places)
            kernel = tiled if kind == "tiled" else plain
            return kernel(self.q, Keys(self.k, self.v, self.places), self.rule, sight)
        self.prepare(kind)
        mask = self.bias() if kind == "sdpa, bias built" else self.given if kind == "sdpa, bias given" else None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.rule.scale)
        return y.transpose(1, 2)

    def forward(self, kind):
        with torch.no_grad():
            self.run(kind)

    def both(self, kind):
        self.run(kind).backward(self.dy)
        self.q.grad = self.k.grad = self.v.grad = None


def times(t, with_plain):
    """Median seconds of forward, and of forward and backward, of each kind, run three times in turn."""
    kinds = ["tiled", "sdpa, bias given", "sdpa, bias built", "sdpa, no bias", *(["plain"] if with_plain else [])]
    small, problem = Problem(256), Problem(t)
    found = {(kind, part): [] for kind in kinds for part in ("forward", "both")}
    for kind in kinds:
        small.both(kind)  # whatever is loaded on first use
        problem.prepare(kind)
    for _ in range(3):
        for kind, part in found:
            start = time.perf_counter()
            getattr(problem, part)(kind)
            found[kind, part].append(time.perf_counter() - start)
    rows = []
    for (kind, part), x in found.items():
        ratio = statistics.median(x) / statistics.median(found["sdpa, bias given", part])
        spread = {"lowest": min(x), "highest": max(x)}
        rows.append({"t": t, "kind": kind, "pass": part, "seconds": statistics.median(x), **spread, "ratio": ratio})
        print(f"{t:6d}  {part:8} {kind:18} {statistics.median(x):8.3f} s {ratio:6.2f} x", flush=True)
    return rows


def memory_of(kind, t, threads):
    """Bytes by which a process of its own grows in one forward and backward pass."""
    command = [sys.executable, __file__, "--child", kind, "--longest", str(t), "--threads", str(threads)]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{t:6d}  {kind:18} {row['bytes'] / 2**20:8.0f} MiB  ({row['seconds']:.1f} s)", flush=True)
    return row


def child(kind, t):
    """Print the growth of this process in one pass over t tokens, and its seconds."""
    Problem(256).both(kind)
    problem = Problem(t)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    problem.both(kind)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"t": t, "kind": kind, "bytes": (after - before) * 1024, "seconds": seconds}))


def draw(memory, path):
    """Peak memory against length, both on logarithmic scales."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for kind, label in LABELS.items():
        points = [(row["t"], row["bytes"] / 2**20) for row in memory if row["kind"] == kind]
        axes.plot(*zip(*points), marker="o", label=label)
    lengths = sorted({row["t"] for row in memory})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(lengths, [f"{t:,}" for t in lengths])
    axes.set_xlabel("tokens")
    axes.set_ylabel("MiB above the inputs, forward and backward")
    axes.set_title(f"Causal attention with ALiBi, {HEADS} heads of width {WIDTH}, float32")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def keep(**found):
    """Write what was measured, beside what the file has already."""
    path = ROOT / "benchmarks/results/attention_cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**report, **found}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--compare-up-to", type=int, default=8192)
    parser.add_argument("--plain-up-to", type=int, default=4096)
    parser.add_argument(
        "--only", choices=["speed", "memory"], help="measure one, and keep what the file has of the other"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.child:
        child(asked.child, asked.longest)
        return
    lengths = [2**n for n in range(11, 20) if 2**n <= asked.longest]
    compared = [t for t in lengths if t <= asked.compare_up_to]
    if asked.only != "memory":
        machine = {"cpu": processor(), "threads": asked.threads, "torch": torch.__version__}
        keep(machine=machine, speed=[row for t in compared for row in times(t, t <= asked.plain_up_to)])
    if asked.only != "speed":
        rows = [memory_of("tiled", t, asked.threads) for t in lengths]
        rows += [memory_of("plain", t, asked.threads) for t in compared if t <= asked.plain_up_to]
        rows += [memory_of("sdpa, bias built", t, asked.threads) for t in compared]
        keep(memory=rows)
        draw(rows, ROOT / "docs/pictures/attention_memory.png")


if __name__ == "__main__":
    main()
