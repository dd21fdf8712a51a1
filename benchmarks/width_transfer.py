"""Where the best learning rate lies at four widths: without `train.width_transfer` it falls, with it it stays.

The same small model from 64 to 512 wide, with more heads of 16 and a wider feed-forward, learns the built-in fables by
characters at learning rates a factor of two apart; each loss is the mean over the last fifth of the steps, of the same
batches for all. Matrices start with 1/√width either way; without the option so do the embeddings, as is usual. Writes
benchmarks/results/width_transfer.json and docs/pictures/width_transfer.png.

python benchmarks/width_transfer.py [--steps 120] [--widths 64 128 256 512] [--seeds 1] [--threads 2] [--out FOLDER]
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure

from onehop.config import Recipe
from onehop.machine.here import processor
from onehop.training import Trainer

ROOT = Path(__file__).resolve().parents[1]
RATES = [2.0**-n for n in range(11, 4, -1)]  # 0.0005 … 0.03
D_HEAD, ROWS, CONTEXT = 16, 8, 64


def recipe(out, *, width, lr, steps, seed, base):
    """One run; `base` is train.width_transfer."""
    return Recipe(
        out=str(out),
        model={
            "d_model": width, "n_layers": 2, "max_len": CONTEXT, "attention": {"n_heads": width // D_HEAD},
            "ffn": {"kind": "gated", "d_ff": 2 * width}, "init_std": (base or width) ** -0.5,
        },
        data={"corpus": "fables", "n_documents": 1000, "tokenizer": "characters", "packing": "stream"},
        train={
            "steps": steps, "batch_size": ROWS, "lr": lr, "warmup": max(steps // 10, 1), "schedule": "constant",
            "width_transfer": base, "seed": seed, "precision": "float32", "device": "cpu",
        },
    )  # fmt: skip


def final_loss(folder, **run):
    """Mean loss of the last fifth of the steps; infinite if the run left the numbers."""
    trainer = Trainer(recipe(folder, **run), fresh=True)
    losses = [result.loss for result in trainer.steps()]
    tail = losses[-max(len(losses) // 5, 1) :]
    mean = sum(tail) / len(tail)
    return mean if math.isfinite(mean) else math.inf


def measure(widths, *, steps, seeds):
    """A row for each way, width and rate: the mean over the seeds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for base in (None, min(widths)):
            for width in widths:
                for lr in RATES:
                    run = {"width": width, "lr": lr, "steps": steps, "base": base}
                    losses = [final_loss(Path(folder) / "run", seed=seed, **run) for seed in range(seeds)]
                    rows.append({"transfer": base is not None, "width": width, "lr": lr, "loss": sum(losses) / seeds})
                best = min(rows[-len(RATES) :], key=lambda row: row["loss"])
                how = "without" if base is None else "with"
                print(f"{how} transfer, {width} wide: best at {best['lr']:.4g}, loss {best['loss']:.3f}", flush=True)
    return rows


def best_rates(rows):
    """The best rate of each width, without and with."""
    found = {}
    for way, name in ((False, "without"), (True, "with")):
        widths = sorted({row["width"] for row in rows})
        chosen = [[row for row in rows if row["transfer"] == way and row["width"] == width] for width in widths]
        found[name] = {str(w): min(of, key=lambda row: row["loss"])["lr"] for w, of in zip(widths, chosen, strict=True)}
    return found


def draw(rows, file):
    figure = Figure(figsize=(9, 3.8))
    both = figure.subplots(1, 2, sharey=True)
    widths = sorted({row["width"] for row in rows})
    for axes, way, title in zip(both, (False, True), ("as it is", "train.width_transfer"), strict=True):
        for i, width in enumerate(widths):
            curve = [row for row in rows if row["transfer"] == way and row["width"] == width]
            color = f"C{i}"
            axes.plot([r["lr"] for r in curve], [r["loss"] for r in curve], color=color, label=f"{width} wide")
            best = min(curve, key=lambda row: row["loss"])
            axes.plot(best["lr"], best["loss"], "o", color=color)
        axes.set_xscale("log", base=2)
        axes.set(title=title, xlabel="train.lr")
        axes.grid(alpha=0.3)
    finite = [row["loss"] for row in rows if math.isfinite(row["loss"])]
    both[0].set(ylabel="loss (nats per character)", ylim=(min(finite) - 0.05, min(finite) + 1.2))
    both[1].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=ROOT, help="folder in which the two files are written")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    began = time.perf_counter()
    rows = measure(asked.widths, steps=asked.steps, seeds=asked.seeds)
    shape = {"layers": 2, "d_head": D_HEAD, "d_ff": "2 · width", "rows": ROWS, "context": CONTEXT}
    shape |= {"init_std": "1/√width, with transfer 1/√base_width"}
    result = {
        "shape": shape,
        "steps": asked.steps,
        "seeds": asked.seeds,
        "base_width": min(asked.widths),
        "machine": {"cpu": processor(), "threads": asked.threads},
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - began),
        "best_rate": best_rates(rows),
        "runs": rows,
    }
    target = asked.out / "benchmarks" / "results" / "width_transfer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    draw(rows, asked.out / "docs" / "pictures" / "width_transfer.png")
    print(json.dumps(result["best_rate"], indent=2), f"{result['seconds']} s", sep="\n")


if __name__ == "__main__":
    main()
