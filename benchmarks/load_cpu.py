"""Seconds to load a checkpoint against seconds to read its file: both from the page cache, the best of several.

What is measured is what onehop adds to reading: the header, the copy into memory of its own, the search for NaN. Random
weights in one model.safetensors, loaded as they are stored and in another dtype.

python benchmarks/load_cpu.py [--megabytes 400] [--times 5] [--threads 1]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from onehop.config import ModelConfig
from onehop.model import build
from onehop.weights import open_model, save_native

PART = 1 << 24  # bytes


def config_of(megabytes):
    """A model of about so many megabytes in float32: layers of 12.6 MB each."""
    return ModelConfig.model_validate(
        {
            "vocab_size": 8000, "d_model": 512, "n_layers": max(1, round((megabytes - 33) / 12.6)), "max_len": 512,
            "attention": {"n_heads": 8, "n_kv_heads": 8}, "ffn": {"kind": "gated", "d_ff": 1365},
        }
    )  # fmt: skip


def best(run, times):
    """The least of several measurements: what else runs here can only add."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def read(file):
    """All bytes of a file into memory of one's own."""
    found = bytearray(file.stat().st_size)
    with open(file, "rb", buffering=0) as handle:
        view = memoryview(found)
        while view:
            view = view[handle.readinto(view[:PART]) :]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        save_native(build(config_of(given.megabytes), seed=0), folder)
        file = Path(folder) / "model.safetensors"
        reading = best(lambda: read(file), given.times)
        loading = {
            dtype: best(lambda dtype=dtype: open_model(folder, dtype=dtype), given.times)
            for dtype in ("float32", "bfloat16")
        }
        rows = {"megabytes": file.stat().st_size / 1e6, "read_s": reading}
    rows |= {f"load_{dtype}_s": seconds for dtype, seconds in loading.items()}
    rows |= {f"load_{dtype}_over_read": seconds / reading for dtype, seconds in loading.items()}
    print(json.dumps({name: round(value, 4) for name, value in rows.items()}))


if __name__ == "__main__":
    main()
