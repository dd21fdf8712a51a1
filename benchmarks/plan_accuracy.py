"""How near the planner comes: predicted against tracked memory and counted FLOPs, against resident memory, and time.

Memory and FLOPs do not depend on what else the machine does. Times do: run that part on a quiet machine. Its
calibration and all models take turns within one run, because a machine may change its pace; medians over the rounds,
the error's over each round's own. Resident memory is that of `onehop train` and `onehop generate` in processes of
their own. Writes benchmarks/results/plan_accuracy.json, keeping the parts that were not asked for.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import onehop
from onehop.cli.measure import measure
from onehop.cli.measure_resident import ran, resident
from onehop.config import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.cost import Asked, plan
from onehop.cost.activations import Run
from onehop.cost.devices import Device
from onehop.cost.flops import TRAINING, Pass, forward
from onehop.cost.memory import Training, TrainingPlan, training
from onehop.cost.roofline import Work
from onehop.cost.serving import Inference, InferencePlan, inference
from onehop.cost.weights import weights
from onehop.data.loader import Batch
from onehop.generate.engine import Engine
from onehop.machine.counter import flops_of
from onehop.machine.here import here
from onehop.machine.live import LiveBytes
from onehop.machine.measure import Bench
from onehop.model.build import torch_dtype
from onehop.model.recompute import recompute as compute_again
from onehop.parts.linear import pack
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import has_native_bf16, pick_product
from onehop.training.step import training_step

RESULT = Path(__file__).parent / "results" / "plan_accuracy.json"
HEADS = {"n_heads": 8, "n_kv_heads": 2}
LATENT = {
    "kind": "latent", "n_heads": 8, "d_head": 48, "d_latent": 64, "d_latent_q": 96, "d_value": 32,
    "position": {"kind": "rope", "width": 16},
}  # fmt: skip
DYNAMIC = {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_max_len": 512}}
MOE = {"kind": "moe", "d_ff": 256, "n_experts": 8, "n_active": 2}


def shape(**own: Any) -> ModelConfig:
    """A model of a few million parameters."""
    table = {"vocab_size": 4096, "d_model": 256, "n_layers": 6, "max_len": 4096, "attention": HEADS}
    return ModelConfig.model_validate({**table, "ffn": {"kind": "gated", "d_ff": 704}, **own})


CLASSIC = shape(
    attention={"n_heads": 8, "bias": True, "bias_out": True, "position": "none"}, norm="layer", final_norm="layer",
    ffn={"kind": "plain", "d_ff": 1024, "activation": "gelu_tanh", "bias": True}, embed={"position": "learned"},
)  # fmt: skip
# name -> config, rows, tokens per row, how: what memory is compared for
GRID: dict[str, tuple[ModelConfig, int, int, dict[str, Any]]] = {
    "grouped heads, gated": (shape(), 4, 256, {}),
    "layer norms, biases, learned positions": (CLASSIC, 4, 256, {}),
    "the same in bfloat16": (CLASSIC, 4, 256, {"precision": "bfloat16"}),
    "wide heads in bfloat16": (shape(attention={"n_heads": 4, "n_kv_heads": 1}), 4, 256, {"precision": "bfloat16"}),
    "a window, long rows": (shape(attention={**HEADS, "window": 128}), 2, 1024, {}),
    "ALiBi": (shape(attention={**HEADS, "position": "alibi"}), 2, 512, {}),
    "sandwich norms, softcap, normed heads": (
        shape(attention={**HEADS, "softcap": 30.0, "qk_norm": {"norm": "rms"}}, norm_out="inside"), 2, 512, {},
    ),
    "experts and a shared one": (shape(ffn={**MOE, "d_ff_shared": 512}), 4, 256, {}),
    "a latent": (shape(attention=LATENT), 4, 256, {}),
    "checkpointed blocks, micro-batches": (shape(n_layers=12), 2, 512, {"recompute": "block", "micro": 2}),
    "Muon, few tokens": (shape(d_model=512, attention={"n_heads": 8}), 1, 64, {"optimizer": "muon"}),
    "many ids, untied": (shape(vocab_size=32768, head={"tied": False}), 2, 256, {}),
    "short rows": (shape(attention={"n_heads": 8}, vocab_size=512), 16, 96, {}),
    "a latent, short rows in bfloat16": (shape(attention=LATENT, vocab_size=512), 16, 128, {"precision": "bfloat16"}),
    "angles by the text's length": (shape(attention={**HEADS, "position": DYNAMIC}, n_layers=2), 2, 1536, {}),
    "prompts of several chunks": (shape(n_layers=2), 2, 3000, {}),
}  # fmt: skip
SHAPES: dict[str, ModelConfig] = {
    "4 × 256, gated": shape(n_layers=4),
    "8 × 512, gated": shape(n_layers=8, d_model=512, ffn={"kind": "gated", "d_ff": 1408}),
    "6 × 768, plain, multi-head": shape(
        d_model=768, attention={"n_heads": 12}, ffn={"kind": "plain", "d_ff": 3072}, vocab_size=16384
    ),
    "16 × 384, gated": shape(n_layers=16, d_model=384, attention={"n_heads": 6}, ffn={"kind": "gated", "d_ff": 1024}),
    "6 × 256, layer norms, biases": CLASSIC,
    "12 × 320, multi-query": shape(
        n_layers=12, d_model=320, attention={"n_heads": 5, "n_kv_heads": 1}, ffn={"kind": "gated", "d_ff": 896}
    ),
    "4 × 640, a window": shape(
        n_layers=4, d_model=640, attention={"n_heads": 10, "window": 128}, ffn={"kind": "gated", "d_ff": 1728}
    ),
    "3 × 1024, few ids": shape(
        n_layers=3, d_model=1024, attention={"n_heads": 16, "n_kv_heads": 4}, ffn={"kind": "gated", "d_ff": 2816},
        vocab_size=512,
    ),
}  # fmt: skip
# name -> config, precision: what times are compared for, in bfloat16 where the machine has it
TIMED: dict[str, tuple[ModelConfig, str]] = {
    **{f"{name}, float32": (config, "float32") for name, config in SHAPES.items()},
    **{f"{name}, bfloat16": (config, "bfloat16") for name, config in list(SHAPES.items())[:4]},
}
# name -> keys of the recipe whose processes' memory is compared
HELD: dict[str, tuple[str, ...]] = {
    "4 × 256, 8 rows of 256": ("model.d_model=256", "model.n_layers=4", "model.ffn.d_ff=768"),
    "the same in bfloat16": ("model.d_model=256", "model.n_layers=4", "model.ffn.d_ff=768", "train.precision=bfloat16"),
    "4 × 256, 8 rows of 1024": ("model.d_model=256", "model.n_layers=4", "model.ffn.d_ff=768", "model.max_len=1024"),
    "12 × 512, 8 rows of 512": (
        "model.d_model=512", "model.n_layers=12", "model.ffn.d_ff=1536", "model.max_len=512",
    ),
    "6 × 1024, 4 rows of 128": (
        "model.d_model=1024", "model.n_layers=6", "model.ffn.d_ff=3072", "model.max_len=128", "train.batch_size=4",
    ),
    "the same with Muon": (
        "model.d_model=1024", "model.n_layers=6", "model.ffn.d_ff=3072", "model.max_len=128", "train.batch_size=4",
        "train.optimizer=muon",
    ),
    "4 × 512, 8 experts": (
        "model.d_model=512", "model.n_layers=4", "model.ffn.kind=moe", "model.ffn.d_ff=512", "model.ffn.n_experts=8",
        "model.ffn.n_active=2",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=["memory", "resident", "time", []], help="left out: all")
    parser.add_argument("--rounds", type=int, default=5, help="turns of the calibration and of each model")
    parser.add_argument("--small", type=int, default=1, help="divide what is timed, to try the script")
    asked = parser.parse_args()
    found = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    if not asked.part or "memory" in asked.part:
        found |= {"training": [trained_row(name) for name in GRID], "inference": [served_row(name) for name in GRID]}
    if not asked.part or "resident" in asked.part:
        found["resident"] = held_rows()
    if not asked.part or "time" in asked.part:
        found["time"] = timed(rounds=asked.rounds, small=asked.small)
    for kind in ("training", "inference", "resident"):
        if kind in found:
            print(f"{kind}: worst error {max(abs(row['error']) for row in found[kind]):.2%}")
    if "time" in found:
        for row in found["time"]["rows"]:
            speeds = f"{row['measured']:9.1f} tokens/s, predicted {row['predicted']:9.1f}, {row['error']:+.0%}"
            print(f"{row['name']:32} {row['phase']:9} {speeds}")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


# Memory and FLOPs


def rows_of(n: int, length: int, vocab: int) -> Batch:
    """Random rows: what stands in them changes nothing here."""
    tokens = torch.randint(vocab, (n, length + 1), generator=torch.Generator().manual_seed(0))
    places = {"doc": torch.zeros(n, length, dtype=torch.int32), "at": torch.arange(length).expand(n, length)}
    cut = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Batch(*cut, **places, n_targets=n * length, packed=False, padded=False)


def trainer(
    config: ModelConfig,
    rows: int,
    length: int,
    *,
    precision: str = "float32",
    micro: int = 1,
    optimizer: str = "adamw",
    recompute: str = "none",
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A model in training: its step, and the tensors that live between steps once one was taken."""
    cfg = TrainConfig(steps=1 << 30, batch_size=rows * micro, micro_batch=rows, optimizer=optimizer)
    model = onehop.build(config).train()
    pick_product(model, torch.device("cpu"))
    compute_again(model, recompute)
    moves = make_optimizer(model, cfg, precision=torch_dtype(precision))
    batches = [rows_of(rows, length, config.vocab_size) for _ in range(micro)]
    step = partial(training_step, model, moves, batches, cfg=cfg, precision=torch_dtype(precision))
    step(index=0)
    state = [x for held in moves.state.values() for x in held.values() if isinstance(x, torch.Tensor)]
    return step, [*model.parameters(), *model.buffers(), *state]


def trained_row(name: str) -> dict[str, Any]:
    """Predicted and tracked peak of a training step; predicted and counted FLOPs of its model on the meta device."""
    config, rows, length, how = GRID[name]
    step, living = trainer(config, rows, length, **how)
    with LiveBytes(living) as live:
        step(index=1)
    predicted = planned_step(name)
    model = onehop.build(config, device="meta", dtype="bfloat16")
    tokens = torch.zeros(rows, length, dtype=torch.int64, device="meta")
    counted = flops_of(lambda: model(tokens, kernel="plain").sum().backward())
    flops = TRAINING * rows * forward(config, weights(config), Pass(length)).total
    row = _row(name, predicted.live, live.peak) | {"peak_at": predicted.peak_at}
    return row | {"flops_predicted": flops, "flops_counted": counted}


def served_row(name: str) -> dict[str, Any]:
    """Predicted and tracked peak while prompts are read and 16 tokens added."""
    config, rows, length, how = GRID[name]
    dtype = how.get("precision", "float32")
    model = onehop.build(config, dtype=dtype).eval()
    with LiveBytes([*model.parameters(), *model.buffers()]) as live:
        session = Engine(model).start([[1] * length] * rows, room=16)
        for _ in range(16):
            session.advance(torch.ones(rows, dtype=torch.int64))
    return _row(name, planned_answer(name).live, live.peak)


def planned_step(name: str) -> Training:
    """What the planner says of a training step."""
    config, rows, length, how = GRID[name]
    run = Run(rows, length, how.get("precision", "float32"))
    wish = TrainingPlan(run, how.get("micro", 1), how.get("optimizer", "adamw"), how.get("recompute", "none"))
    return training(config, weights(config), wish)


def planned_answer(name: str) -> Inference:
    """What it says of prompts that are read and 16 tokens added."""
    config, rows, length, how = GRID[name]
    wish = InferencePlan(batch=rows, context=length + 16, prompt=length, dtype=how.get("precision", "float32"))
    return inference(config, weights(config), wish)


def _row(name: str, predicted: float, measured: float) -> dict[str, Any]:
    error = round(predicted / measured - 1, 5)
    return {"name": name, "predicted": round(predicted), "measured": round(measured), "error": error}


def held_rows() -> list[dict[str, Any]]:
    """Predicted and measured resident memory of training runs and of answers, by what two other models told."""
    lines, rows = resident(print), []
    for name, keys in HELD.items():
        for phase, (live, others, held) in ran(*keys).items():
            rows.append({**_row(name, lines[phase].of(live, others), held), "phase": phase, "tensors": round(live)})
            print(rows[-1])
    return rows


# Time


def timed(*, rounds: int, small: int) -> dict[str, Any]:
    """Tokens/s of training, prefill and decoding, predicted from a calibration that is measured in between."""
    bench = Bench(tries=3, shortest=0.03)
    native = has_native_bf16(torch.device("cpu"))
    chosen = {name: pair for name, pair in TIMED.items() if native or pair[1] == "float32"}
    calls = {name: phases(*pair, small=small) for name, pair in chosen.items()}
    seconds: dict[tuple[str, str], list[float]] = {}
    devices: list[Device] = []
    for _ in range(rounds):
        devices.append(measure(here(cards=False), bench=bench, report=lambda line: None, small=small))
        for name, by_phase in calls.items():
            for phase, (call, _) in by_phase.items():
                seconds.setdefault((name, phase), []).append(sustained(call))
    rows = []
    for (name, phase), taken in seconds.items():
        expected = [predicted(*chosen[name], phase, device, small=small) for device in devices]
        measured = [calls[name][phase][1] / one for one in taken]
        ratio = statistics.median(e / m for e, m in zip(expected, measured, strict=True))
        medians = {"predicted": statistics.median(expected), "measured": statistics.median(measured)}
        rows.append({"name": name, "phase": phase, **medians, "error": round(ratio - 1, 4)})
    return {"machine": devices[-1].source, "rounds": rounds, "rows": rows}


def sustained(call: Callable[[], Any], *, warm: float = 0.3, timed: float = 0.5) -> float:
    """Seconds of one call among so many that they fill `timed` seconds, behind others that bring all into place."""
    for least in (warm, timed):
        n, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < least or not n:
            call()
            n += 1
    return taken / n


ROWS, LENGTH, STEPS = 4, 256, 16


def phases(config: ModelConfig, precision: str, *, small: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """What is timed of one model, and the tokens that each call makes."""
    length = LENGTH // small
    step, _ = trainer(config, ROWS, length, precision=precision)
    model = onehop.build(config, dtype=precision).eval()
    pack(model)
    engine, token = Engine(model), torch.ones(1, dtype=torch.int64)
    session = engine.start([[1] * length], room=1 << 12)

    def decode() -> None:
        for _ in range(STEPS):
            session.advance(token)

    return {
        "training": (partial(step, index=1), ROWS * length),
        "prefill": (lambda: engine.start([[1] * length], room=1), length),
        "decode": (decode, STEPS),
    }


def predicted(config: ModelConfig, precision: str, phase: str, device: Device, *, small: int) -> float:
    """Tokens per second that the planner expects."""
    length = LENGTH // small
    if phase == "training":
        work = Work(config, weights(config), device)
        return work.train(Run(ROWS, length, precision)).tokens_per_s
    asked = Asked(context=length, dtype=precision)
    return plan(config).times(device, asked)[phase].tokens_per_s


if __name__ == "__main__":
    main()
