"""One short run on a GPU: first that it is right, then how fast it trains and decodes.

Right: kernels of attention, gradients, compiled loss and cached decoding against the definition in float64 on the CPU,
in units of what the definition itself loses in the dtype. Wrong numbers end the run with exit code 1, before any speed.

Fast: a Llama of a billion parameters in bfloat16, rows of 4096 tokens: tokens per second, FLOP/s and their share of the
largest products' (MFU, by the planner's count), as it is and with compiler, chunked loss and fused optimizer together;
tokens decoded per second, one text and sixteen. Writes benchmarks/results/gpu.json.

python benchmarks/gpu.py [--device cuda] [--shape 1b|tiny] [--rows 4] [--steps 8] [--out FILE]

Without a GPU nothing is measured, and that is said; `--device cpu --shape tiny` tries the script.
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from plan_accuracy import rows_of

import onehop
from onehop.config import ModelConfig, Recipe
from onehop.config.recipe import TrainConfig
from onehop.lm import LanguageModel
from onehop.machine.here import processor
from onehop.training.compiled import pick_loss
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import pick_product
from onehop.training.speed import Speed, measure_peak
from onehop.training.step import training_step

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {  # that of Llama 3.2 1B
        "vocab_size": 128256, "d_model": 2048, "n_layers": 16, "max_len": 4096,
        "attention": {"n_heads": 32, "n_kv_heads": 8}, "ffn": {"kind": "gated", "d_ff": 8192},
    },
    "tiny": {
        "vocab_size": 512, "d_model": 64, "n_layers": 2, "max_len": 64,
        "attention": {"n_heads": 4, "n_kv_heads": 2}, "ffn": {"kind": "gated", "d_ff": 128},
    },
}  # fmt: skip
CHECKED: dict[str, dict[str, Any]] = {  # small models of which each asks something else of the kernels
    "rope": {"attention": {"n_heads": 4, "n_kv_heads": 2}},
    "a window": {"attention": {"n_heads": 4, "n_kv_heads": 2, "window": 9}},
    "alibi": {"attention": {"n_heads": 4, "n_kv_heads": 4, "position": {"kind": "alibi"}}},
    "softcap": {"attention": {"n_heads": 4, "n_kv_heads": 1, "softcap": 20.0}},
    "experts": {"attention": {"n_heads": 4, "n_kv_heads": 2},
                "ffn": {"kind": "moe", "d_ff": 64, "n_experts": 4, "n_active": 2, "renormalise": True}},
}  # fmt: skip
ALLOWED = 4.0  # times what the plain definition loses in the same dtype: kernels add in other orders
FLOOR = 8.0  # units of the dtype's precision that any sum may lose
WAYS = ("plain", "tiled", "fused", "auto", "cached", "compiled")  # a kernel hands over what it cannot express
PRECISIONS = (torch.float32, torch.bfloat16)
WARM_UP = 3  # steps that do not count: the compiler's, the allocator's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], help="left out: the GPU, where there is one")
    parser.add_argument("--shape", choices=list(SHAPES), default="1b")
    parser.add_argument("--rows", type=int, default=4, help="rows of a training step")
    parser.add_argument("--steps", type=int, default=8, help="steps that are timed")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    asked = parser.parse_args()
    if asked.device is None and not torch.cuda.is_available():
        print("no GPU here: nothing measured (--device cpu --shape tiny tries the script)")
        return
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here; --device cpu --shape tiny tries the script")
    device = torch.device(asked.device or "cuda")
    found: dict[str, Any] = {"machine": machine(device), "shape": SHAPES[asked.shape], "right": right(device)}
    wrong = [row for row in found["right"] if not row["holds"]]
    for row in wrong:
        print("WRONG", json.dumps(row), file=sys.stderr)
    if not wrong:
        found["training"] = training(device, SHAPES[asked.shape], rows=asked.rows, steps=asked.steps)
        found["decoding"] = decoding(device, SHAPES[asked.shape])
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if wrong else 0)


def right(device: torch.device) -> list[dict[str, Any]]:
    """Each way to compute on the device against the definition in float64 on the CPU: rows with a verdict."""
    rows: list[dict[str, Any]] = []
    for name, own in CHECKED.items():
        config = ModelConfig(**{**SHAPES["tiny"], **own})
        exact = numbers(config, torch.device("cpu"), torch.float64, "plain")
        for dtype in PRECISIONS:
            plain = apart(numbers(config, device, dtype, "plain"), exact)
            for way in WAYS if dtype == torch.bfloat16 else WAYS[:-1]:  # compiled once: it takes its time
                lost = plain if way == "plain" else apart(numbers(config, device, dtype, way), exact)
                most = {what: max(ALLOWED * plain[what], FLOOR * torch.finfo(dtype).eps) for what in lost}
                holds = all(lost[what] <= most[what] for what in lost)
                rows.append(row(name, dtype, way, lost=lost, allowed=most, holds=holds))
                print(name, dtype, way, {what: f"{value:.1e}" for what, value in lost.items()}, holds, flush=True)
    return rows


def row(name: str, dtype: torch.dtype, way: str, **found: Any) -> dict[str, Any]:
    return {"model": name, "dtype": str(dtype).removeprefix("torch."), "way": way, **found}


def numbers(config: ModelConfig, device: torch.device, dtype: torch.dtype, way: str) -> dict[str, torch.Tensor]:
    """Logits, loss and a gradient of the first layer, whichever this way has, as float64 on the CPU."""
    model = onehop.build(config, seed=0).to(device, dtype)
    batch = rows_of(2, 32, config.need_vocab()).to(device)
    if way == "cached":
        with torch.inference_mode():
            cache = model.new_cache(2)
            pieces = [
                model(batch.tokens[:, at : at + n], cache=cache)
                for at, n in ((0, 20), *((i, 1) for i in range(20, 32)))
            ]
        return {"logits": torch.cat(pieces, 1).double().cpu()}
    if way == "compiled":
        torch._dynamo.reset()  # the graphs of other models are done with
        cfg = TrainConfig(steps=1, batch_size=2, compile="yes")
        loss = pick_loss(cfg, device, note=print, say=print)(model, batch)
    else:
        loss = batch_loss(model, batch, kernel=way)
    loss.surprise.backward()
    gradient = model.layers[0].attention.wo.weight.grad
    found = {"loss": loss.surprise.detach(), "gradient": gradient}
    if way != "compiled":
        with torch.inference_mode():
            found["logits"] = model(batch.tokens, kernel=way)
    return {what: value.double().cpu() for what, value in found.items()}


def apart(one: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> dict[str, float]:
    """The distance of each from the exact one, as a share of its size."""
    return {what: float((value - exact[what]).norm() / exact[what].norm()) for what, value in one.items()}


def training(device: torch.device, shape: dict[str, Any], *, rows: int, steps: int) -> list[dict[str, Any]]:
    """Tokens per second and MFU of training in bfloat16, without and with all that makes it quick."""
    dtype, context = torch.bfloat16, shape["max_len"]
    peak = measure_peak(device, dtype)
    found = []
    for name, how in (
        ("as it is", {"compile": "no"}),
        ("chunked loss", {"compile": "no", "loss_chunk": 2048}),
        ("compiled", {"compile": "yes"}),
        ("compiled, chunked loss", {"compile": "yes", "loss_chunk": 2048}),
    ):
        torch._dynamo.reset()
        cfg = TrainConfig(steps=10**6, batch_size=rows, **how)
        model = onehop.build(ModelConfig(**shape), seed=0).to(device).train()
        pick_product(model, device)
        said: list[str] = []
        step = partial(
            training_step, model, make_optimizer(model, cfg, precision=dtype), cfg=cfg, precision=dtype,
            loss_of=pick_loss(cfg, device, note=said.append, say=said.append),
        )  # fmt: skip
        batches = [rows_of(rows, context, shape["vocab_size"]).to(device)]
        times = [timed(device, partial(step, batches, index=i)) for i in range(WARM_UP + steps)]
        speed = Speed.of(
            Recipe(model=shape, data={"corpus": "fables"}, train=cfg.model_dump()), context=context, peak=peak
        )
        rate = rows * context / statistics.median(times[WARM_UP:])
        found.append({"how": name, **speed.numbers(rate), "first_step_s": round(times[0], 1), "said": said})
        if device.type == "cuda":
            found[-1]["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        print(json.dumps(found[-1]), flush=True)
        del model, step, batches
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    return [{"peak_flops_per_s": None if peak is None else peak.flops_per_s}, *found]


def decoding(device: torch.device, shape: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens per second of greedy decoding behind prompts of a quarter of the context."""
    model = onehop.build(ModelConfig(**shape), seed=0).to(device, torch.bfloat16).eval()
    lm, long = LanguageModel(model), shape["max_len"] // 4
    found = []
    for texts in (1, 16):
        prompts = torch.randint(shape["vocab_size"], (texts, long), generator=torch.Generator().manual_seed(0)).tolist()
        once = partial(lm.generate, prompts, temperature=0.0)
        once(max_new_tokens=2)  # warms up
        few, many = 4, 4 + min(128, long)
        rates = []
        for _ in range(3):
            short, whole = (timed(device, partial(once, max_new_tokens=n)) for n in (few, many))
            rates.append(texts * (many - few) / (whole - short))
        found.append({"texts": texts, "tokens_per_s": round(statistics.median(rates), 1)})
        print(json.dumps(found[-1]), flush=True)
    return found


def timed(device: torch.device, call: Any) -> float:
    """Seconds of one call, to the last kernel's end."""
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def machine(device: torch.device) -> dict[str, Any]:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    return {"gpu": card, "cpu": processor(), "torch": torch.__version__, "cuda": torch.version.cuda}


if __name__ == "__main__":
    main()
