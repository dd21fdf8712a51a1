"""What a checkpoint costs the training: seconds that a save holds the loop, beside and behind it, and steps meanwhile.

Takes turns: steps without a save, then a save in the background and the steps while it is written, then a save that is
waited for. Medians over the turns. Writes benchmarks/results/save_cpu.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import onehop
from onehop.training.unchanged import machine

KEYS = {
    "model.d_model": 256, "model.n_layers": 6, "model.attention.n_heads": 4, "model.ffn.d_ff": 704,
    "data.n_documents": 2000, "train.steps": 10**6, "train.batch_size": 4, "train.sample_tokens": 0,
}  # fmt: skip


def seconds_of(steps: Iterator[object], n: int) -> list[float]:
    """Seconds of each of the next n steps."""
    found = []
    for _ in range(n):
        began = time.perf_counter()
        next(steps)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps of each kind in a turn")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "save_cpu.json")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"step": [], "step while writing": [], "save in the background": [], "save": []}
    with tempfile.TemporaryDirectory() as folder:
        steps = onehop.steps("quickstart", KEYS | {"out": folder}, fresh=True)
        trainer = next(steps).trainer
        for _ in range(options.turns):
            found["step"] += seconds_of(steps, options.steps)
            began = time.perf_counter()
            trainer.save(background=True)
            found["save in the background"].append(time.perf_counter() - began)
            while trainer.writer.busy:
                found["step while writing"] += seconds_of(steps, 1)
            trainer.writer.wait()
            began = time.perf_counter()
            trainer.save()
            found["save"].append(time.perf_counter() - began)
        n = sum(p.numel() for p in trainer.model.parameters())
    medians = {kind: statistics.median(times) for kind, times in found.items()}
    for kind, seconds in medians.items():
        print(f"{kind:24} {1000 * seconds:8.1f} ms  ({len(found[kind])} times)")
    result = {"parameters": n, "seconds": medians, "machine": machine(torch.device("cpu"))}
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
