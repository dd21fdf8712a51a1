"""Tokens per second on the CPU, one text: onehop against transformers' generate, the same weights, the same precision.

A model of 125 million parameters (vocabulary 32000, 768 wide, 12 layers, 12 heads sharing 4 kv heads, feed-forward
2048), a prompt of 64 tokens and 64 greedy tokens after it. Both libraries are measured in turn, round after round, so
that whatever else the machine does falls on both; what counts is the median of the rounds' ratios. Where that can be,
onehop is measured a second time with `compile=True`, after the graph is made. Needs transformers.

python benchmarks/decode_cpu.py [--rounds 7] [--threads 2] [--out benchmarks/results/decode_cpu.json]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from onehop.config import ModelConfig
from onehop.lm import LanguageModel
from onehop.machine.here import processor
from onehop.model import build
from onehop.weights import save_hf

SHAPE = {
    "vocab_size": 32000, "d_model": 768, "n_layers": 12, "max_len": 2048,
    "attention": {"n_heads": 12, "n_kv_heads": 4}, "ffn": {"kind": "gated", "d_ff": 2048}, "head": {"tied": False},
}  # fmt: skip
PROMPT, NEW = 64, 64
RESULTS = Path(__file__).resolve().parent / "results"


def contestants(dtype):
    """Name -> a function that continues the prompt by n greedy tokens and returns them."""
    ours = build(ModelConfig(**SHAPE), seed=0)
    prompt = torch.randint(0, 32000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        save_hf(ours, folder)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ours = ours.to(dtype)

    def onehop(lm):
        return lambda n: lm.generate(prompt.tolist(), max_new_tokens=n, temperature=0.0)[0].token_ids

    def hugging_face(n):
        settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "min_new_tokens": n}
        return theirs.generate(prompt, max_new_tokens=n, **settings)[0, PROMPT:].tolist()

    two = LanguageModel(ours), LanguageModel(ours, compile=True, say=print)
    found = {"onehop": onehop(two[0]), "transformers": hugging_face}
    graph = two[1].engine().one_token
    assert graph is not None, "asked for"
    return found | ({"onehop, compiled": onehop(two[1])} if graph.ready() else {})


def seconds(run, n):
    start = time.perf_counter()
    assert len(run(n)) == n
    return time.perf_counter() - start


def measure(dtype, rounds):
    """Tokens per second of both, and the ratios round by round."""
    runs = contestants(dtype)
    said = {name: run(NEW) for name, run in runs.items()}  # also warms up
    rates = {name: [] for name in runs}
    prefill = {name: [] for name in runs}
    for i in range(rounds):
        for name in sorted(runs, reverse=bool(i % 2)):
            first, whole = seconds(runs[name], 1), seconds(runs[name], NEW)
            prefill[name].append(first)
            rates[name].append((NEW - 1) / (whole - first))
    ratios = {
        name: [a / b for a, b in zip(rates[name], rates["transformers"])] for name in rates if name != "transformers"
    }
    two = said["onehop"], said["transformers"]
    agree = next((i for i, (a, b) in enumerate(zip(*two)) if a != b), NEW)
    compiled = ratios.get("onehop, compiled")
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "first_token_ms": {name: round(1000 * statistics.median(values), 1) for name, values in prefill.items()},
        "ratio": round(statistics.median(ratios["onehop"]), 2),
        "ratios": [round(ratio, 2) for ratio in ratios["onehop"]],
        "ratio_compiled": None if compiled is None else round(statistics.median(compiled), 2),
        "ratios_compiled": None if compiled is None else [round(ratio, 2) for ratio in compiled],
        "same_tokens_until": agree,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "decode_cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        found.append(measure(dtype, options.rounds))
        print(json.dumps(found[-1]))
    report = {
        "what": __doc__.splitlines()[0],
        "machine": f"{processor()}, {options.threads} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "shape": SHAPE, "prompt": PROMPT, "new": NEW, "rounds": options.rounds, "results": found,
    }  # fmt: skip
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
