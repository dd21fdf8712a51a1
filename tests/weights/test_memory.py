"""What a model takes is told before loading, and what does not fit is refused; loading itself takes little more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onehop.base.errors import CheckpointError
from onehop.config import ModelConfig
from onehop.formats.family import FAMILIES
from onehop.lm import load
from onehop.model import build
from onehop.weights import memory, open_model, save_hf, save_native
from onehop.weights.safetensors_files import write_model
from tests.small_models import decoder, small_model


def test_one_line_before_loading_tells_files_memory_and_what_is_free(tmp_path, monkeypatch):
    model = small_model(decoder(), dtype=torch.float32)
    save_native(model, tmp_path)
    lines = []
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3_000_000_000)
    loaded = load(tmp_path, dtype="bfloat16", report=lines.append).model
    stored, taken = (sum(p.nbytes for p in m.parameters()) for m in (model, loaded))
    assert taken == stored // 2 == memory.loaded_bytes(model, torch.bfloat16)
    assert lines == [
        f"{memory.human_bytes(stored)} in files, {memory.human_bytes(taken)} in memory as bfloat16, 3 GB free"
    ]


def test_nothing_is_printed_by_the_library(tmp_path, capfd):
    save_native(small_model(decoder()), tmp_path)
    load(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_what_does_not_fit_is_refused_with_the_cheapest_changes_before_a_byte_is_read(tmp_path, monkeypatch):
    model = small_model(decoder(), dtype=torch.float64)
    save_native(model, tmp_path)
    n = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("onehop.weights.safetensors_files.TensorFiles.read", lambda *_: pytest.fail("it was read"))
    for free, offer in ((n * 8 - 1, "dtype=float32"), (n * 3, "dtype=bfloat16"), (n, "Use a smaller model")):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        with pytest.raises(CheckpointError, match=r"needs .* as float64, but .* free on cpu\. Use .*smaller") as caught:
            open_model(tmp_path)
        assert offer in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_container_s_limit_counts_and_its_caches_are_free(tmp_path, monkeypatch):
    for name, text in {"most": "1000000\n", "used": "900000", "memory.stat": "anon 5\ninactive_file 300000\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "CGROUPS", {str(tmp_path): ("most", "used")})
    assert memory.free_bytes(torch.device("cpu")) == 400_000
    (tmp_path / "most").write_text("max\n")
    assert memory.free_bytes(torch.device("cpu")) == memory._system_free() > 10**7


LOAD = """
import ctypes, gc, sys, threading, time
from pathlib import Path
from onehop.weights import open_model

def anonymous():
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon"))

open_model(sys.argv[1], dtype=sys.argv[3])  # a small one, so that what loading needs once is there
gc.collect()
if hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was given back, and the large one would lie there
    ctypes.CDLL(None).malloc_trim(0)
before, peak, done = anonymous(), [0], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.0005)

thread = threading.Thread(target=watch)
thread.start()
model = open_model(sys.argv[2], dtype=sys.argv[3]).model
done.set()
thread.join()
print(max(peak[0], anonymous()) - before, sum(p.nbytes for p in model.parameters()))
"""


def peak_and_size(folder, dtype):
    """The most anonymous memory while the model in folder/large is loaded, and the bytes of its weights."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, folder / "small", folder / "large", dtype], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


LARGE = {
    "vocab_size": 4000, "d_model": 384, "n_layers": 8, "max_len": 64,
    "attention": {"n_heads": 6, "n_kv_heads": 6}, "ffn": {"kind": "gated", "d_ff": 1024},
}  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_takes_at_most_1_15_times_the_loaded_model(tmp_path, dtype):
    """The model of 60 MB in float32 is in many tensors; one of them at a time may be there twice."""
    save_native(small_model(decoder()), tmp_path / "small")
    save_native(build(decoder(**LARGE), seed=0), tmp_path / "large")
    peak, size = peak_and_size(tmp_path, dtype)
    assert size > (50e6 if dtype == "float32" else 25e6)
    assert 0.9 * size < peak <= 1.15 * size, peak / size


EXPERTS = {"kind": "moe", "d_ff": 256, "n_experts": 4, "n_active": 2, "renormalise": True}
FUSED = {  # three of ours in one of theirs, and matrices that lie the other way; and many of theirs in one of ours
    "gpt2": {"attention": {"bias": True, "bias_out": True, "position": {"kind": "none"}},
             "norm": {"kind": "layer", "eps": 1e-5}, "final_norm": {"kind": "layer", "eps": 1e-5},
             "ffn": {"kind": "plain", "d_ff": 1536, "activation": "gelu_tanh", "bias": True},
             "embed": {"position": "learned"}},
    "mixtral": {"norm": {"kind": "rms", "eps": 1e-5}, "final_norm": {"kind": "rms", "eps": 1e-5}, "ffn": EXPERTS},
}  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize(("family", "dtype"), [("gpt2", "bfloat16"), ("mixtral", "float32")])
def test_layouts_that_cut_and_join_tensors_take_no_more(tmp_path, family, dtype):
    own = {**LARGE, **FUSED[family]}
    own["attention"] = {**LARGE["attention"], **FUSED[family].get("attention", {})}
    for name, changes in (("small", {"n_layers": 1, "vocab_size": 13}), ("large", {})):
        config = ModelConfig.model_validate({**own, **changes})
        save_hf(build(config, seed=0), tmp_path / name, family=FAMILIES.get(family))
    peak, size = peak_and_size(tmp_path, dtype)
    assert size > (50e6 if dtype == "float32" else 25e6)
    assert 0.9 * size < peak <= 1.15 * size, peak / size


def test_shards_and_a_padded_vocabulary_are_read(tmp_path):
    model = small_model(decoder(vocab_size=64))
    save_native(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_model(tmp_path, model.state_dict().items(), max_bytes=2000)
    assert len(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]) > 3
    tokens = torch.tensor([[1, 5, 2]])
    assert torch.equal(open_model(tmp_path).model(tokens), model(tokens))
