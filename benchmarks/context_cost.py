"""Seconds per decoded token against the length of the text: with a KV cache, and with everything computed again.

One further token costs O(n) with a cache (one query looks at n keys) and O(n²) without one (n queries look at n keys);
what does not depend on the context (each weight read once) is on top. Drawn beside the measurements are the fits
a + b·n and a + b·n + c·n². The model is small, so that the keys, and not the weights, decide early.

python benchmarks/context_cost.py [--longest 65536] [--recompute-up-to 8192] [--threads 2]
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from onehop.config import ModelConfig
from onehop.machine.here import processor
from onehop.model import build
from onehop.parts.linear import pack
from onehop.parts.places import Places

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {
    "vocab_size": 256, "d_model": 256, "n_layers": 2, "max_len": 131072,
    "attention": {"n_heads": 4, "n_kv_heads": 4}, "ffn": {"kind": "gated", "d_ff": 512},
}  # fmt: skip
POWERS = {"cached": 1, "recomputed": 2}
LABELS = {"cached": "with a KV cache", "recomputed": "everything computed again"}
FITS = {"cached": "a + b·n", "recomputed": "a + b·n + c·n²"}


def median_seconds(run, *, times, budget):
    """The median of up to `times` runs, of which no more are begun after `budget` seconds."""
    run()
    found, begun = [], time.perf_counter()
    while len(found) < times and (not found or time.perf_counter() - begun < budget):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


@torch.inference_mode()
def cached(model, n):
    """Seconds for the token after n others whose keys lie in a cache (random ones: their values cost nothing)."""
    cache = model.new_cache(1, capacity=n + 1)
    cache.start(Places.run(0, n))
    for layer in cache.layers:
        layer.extend(**{name: torch.randn(1, n, *shape) for name, shape in layer.spec.entries.items()})
    token = torch.tensor([[7]])

    def step():
        model.head(model.states(token, cache=cache).hidden[:, -1])
        cache.rollback(n)

    return median_seconds(step, times=60, budget=3)


@torch.inference_mode()
def recomputed(model, n):
    """Seconds for the same token by a pass over all of the text."""
    tokens = torch.randint(256, (1, n + 1), generator=torch.Generator().manual_seed(n))
    return median_seconds(lambda: model.head(model.states(tokens).hidden[:, -1]), times=9, budget=5)


def fit(contexts, seconds, power):
    """The polynomial of least relative squares: its values at `contexts`, and its coefficients."""
    n, t = np.array(contexts, dtype=float), np.array(seconds)
    terms = np.stack([n**i for i in range(power + 1)], axis=1)
    coefficients, *_ = np.linalg.lstsq(terms / t[:, None], np.ones_like(t), rcond=None)
    return terms @ coefficients, coefficients


def draw(found, file):
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    for name, rows in found.items():
        contexts, seconds = zip(*rows)
        (line,) = axes.plot(contexts, [1000 * s for s in seconds], "o", markersize=5, label=f"{LABELS[name]}: measured")
        fitted, _ = fit(contexts, seconds, POWERS[name])
        axes.plot(contexts, 1000 * fitted, color=line.get_color(), linewidth=1, label=FITS[name])
    axes.set(xscale="log", yscale="log", xlabel="tokens before it", ylabel="milliseconds for one more token")
    ticks = [n for n, _ in found["cached"]]
    axes.set_xticks(ticks, [str(n) for n in ticks], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--recompute-up-to", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/context_cost.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/pictures/context_cost.png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = build(ModelConfig(**SHAPE), seed=0)
    pack(model)
    found = {"cached": [], "recomputed": []}
    n = 256
    while n <= options.longest:
        found["cached"].append((n, cached(model, n)))
        if n <= options.recompute_up_to:
            found["recomputed"].append((n, recomputed(model, n)))
        print(n, *(f"{name} {1000 * rows[-1][1]:.2f} ms" for name, rows in found.items() if rows[-1][0] == n))
        n *= 2
    report = {
        "what": __doc__.splitlines()[0],
        "machine": f"{processor()}, {options.threads} threads, float32",
        "torch": torch.__version__,
        "shape": SHAPE,
        "seconds": {name: dict(rows) for name, rows in found.items()},
        "fits": {name: [FITS[name], *fit(*zip(*rows), POWERS[name])[1]] for name, rows in found.items()},
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    draw(found, options.picture)


if __name__ == "__main__":
    main()
