"""What `onehop plan --measure` measures, and where it is kept: this machine's rates at onehop's own work."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onehop.config.model import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.cost.activations import Run
from onehop.cost.devices import RATES, Device, Pace
from onehop.cost.muon import orthogonal_flops
from onehop.cost.roofline import Phase, Work
from onehop.cost.serving import InferencePlan
from onehop.cost.weights import weights
from onehop.data.loader import Batch
from onehop.generate.engine import Engine
from onehop.machine.here import Machine
from onehop.machine.measure import (
    Bench,
    attention_rates,
    function_rates,
    linear_rates,
    moving_seconds,
    pass_bandwidth,
    peak,
    read_bandwidth,
    trained_rates,
)
from onehop.model.build import build, torch_dtype
from onehop.parts.attend import attend
from onehop.parts.linear import Linear, pack
from onehop.training.muon import Muon
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import computing, has_native_bf16, pick_product, product_for
from onehop.training.step import training_step

# What is measured at: widths w of linear maps from w to 2 · w, widths of heads, tokens that attend to each other, and
# the shorter sides of matrices that Muon moves.
WIDTHS, TRAINED_WIDTHS, HEAD_WIDTHS, LENGTHS = (256, 1024), (128, 384, 1024), (32, 64, 128), (64, 256, 1024)
SIDES = (16, 64, 128, 384, 1024)
REFERENCES = ((128, 6, 512), (384, 5, 2048), (896, 3, 2048))  # d_model, layers and ids of models measured whole
LEAST = 0.85  # of its time alone is what a part takes in a model: there it runs no quicker, but for noise (some 15 %)
FINE = 1e-6  # where a fit ends
LAYERS = 8  # of the tiny model whose layers cost next to no arithmetic


def measure(machine: Machine, *, bench: Bench, report: Callable[[str], None], small: int = 1) -> Device:
    """This machine's CPU as a device. `small` divides the sizes that are measured (for tests)."""
    dtypes = [torch.float32] + ([torch.bfloat16] if has_native_bf16(torch.device("cpu")) else [])
    flops: dict[str, float] = {}
    rates: dict[str, dict[str, dict[int, dict[int, float]]]] = {key: {} for key in RATES}
    layers: dict[str, dict[str, float]] = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        report(f"products and attention in {name}")
        found = _rates(bench, dtype, small)
        products = [rate for kind in ("linear", "trained") for by in found[kind].values() for rate in by.values()]
        flops[name] = max(peak(bench, dtype, width=2048 // small), *products)
        for kind, by_width in found.items():
            rates[kind][name] = by_width
        report(f"a layer's own time in {name}")
        for phase, taken in _layers(bench, dtype).items():
            layers.setdefault(phase, {})[name] = taken
    report("memory")
    bandwidth, passes = read_bandwidth(bench, nbytes=(1 << 29) // small), pass_bandwidth(bench)
    functions = function_rates(bench, torch.nn.functional.silu)
    measured: dict[str, Any] = dict(rates)
    pace = Pace(**measured, passes=passes, functions=functions, per_layer=layers)
    threads = torch.get_num_threads()
    where = f"{machine.processor}, {threads} thread{'s' * (threads != 1)}, measured"
    parts = Device("this machine", float(machine.memory), bandwidth, flops, where, "cpu", pace)
    wholes: dict[str, dict[str, float]] = {}
    passed: dict[str, dict[str, float]] = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        report(f"whole models in {name}")
        for phase, times in _wholes(bench, dtype, parts, small).items():
            wholes.setdefault(phase, {})[name], passed.setdefault(phase, {})[name] = times
    return replace(parts, pace=replace(pace, whole=wholes, passed=passed))


def _rates(bench: Bench, dtype: torch.dtype, small: int) -> dict[str, dict[int, dict[int, float]]]:
    """FLOP/s of products and of attention, in one type, by width and then by rows or tokens."""
    linear, trained, forward, backward = {}, {}, {}, {}
    for width in WIDTHS:
        linear[width] = linear_rates(bench, dtype, _prepared, width=width // small, nbytes=(1 << 27) // small**2)
    for width in TRAINED_WIDTHS:
        trained[width] = trained_rates(bench, partial(_product, dtype), width=width // small)
    for width in HEAD_WIDTHS:
        pairs = [attention_rates(bench, dtype, attend, length=n // small, d_head=width) for n in LENGTHS]
        forward[width], backward[width] = (dict(zip(LENGTHS, each, strict=True)) for each in zip(*pairs, strict=True))
    moved = {side: _orthogonal(bench, dtype, max(2, side // small)) for side in SIDES}
    return dict(zip(RATES, (linear, trained, forward, backward, moved), strict=True))


def _orthogonal(bench: Bench, dtype: torch.dtype, short: int) -> dict[int, float]:
    """FLOP/s of a step of Muon over matrices with that shorter side, by the longer one."""
    taken = moving_seconds(bench, partial(_moving, dtype), short=short)
    return {long: orthogonal_flops(short, long) / seconds for long, seconds in taken.items()}


def _moving(dtype: torch.dtype, matrices: Sequence[Tensor]) -> Callable[[], None]:
    """A step of Muon, which moves next to nothing, so that it can be repeated."""
    return Muon([{"params": list(matrices)}], lr=1e-9, dtype=dtype).step


def _prepared(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """A linear map as inference has it on a CPU."""
    made = Linear(weight.size(1), weight.size(0)).to(weight.dtype)
    with torch.no_grad():
        made.weight.copy_(weight)
    pack(made)
    return made


def _product(dtype: torch.dtype, x: Tensor, w: Tensor) -> Tensor:
    """The product x · wᵀ as training has it on a CPU."""
    with computing(torch.device("cpu"), dtype):
        return product_for(torch.device("cpu"))(x, w, None)


def _gated(d_model: int, n_layers: int, *, vocab_size: int, d_head: int) -> ModelConfig:
    """A model of gated feed-forward layers and grouped heads."""
    heads = d_model // d_head
    table: dict[str, object] = {"vocab_size": vocab_size, "d_model": d_model, "n_layers": n_layers, "max_len": 1 << 20}
    table |= {"attention": {"n_heads": heads, "n_kv_heads": heads // 2}, "ffn": {"kind": "gated", "d_ff": 3 * d_model}}
    return ModelConfig.model_validate(table)


def _layers(bench: Bench, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of a layer of next to no arithmetic, by phase."""
    found = _phases(bench, _gated(64, LAYERS, vocab_size=64, d_head=32), dtype, rows=1, length=8)
    return {phase: taken / LAYERS for phase, taken in found.items()}


def _wholes(bench: Bench, dtype: torch.dtype, parts: Device, small: int) -> dict[str, tuple[float, float]]:
    """How many times the sums of its parts a whole model takes, by phase: what no part that runs alone can show."""
    found: dict[str, list[tuple[Phase, float]]] = {}
    name, length = str(dtype).removeprefix("torch."), 256 // small
    for d_model, n_layers, vocab_size in REFERENCES:
        config = _gated(d_model // small, n_layers, vocab_size=vocab_size, d_head=64 // small)
        work = Work(config, weights(config), parts)
        asked = InferencePlan(context=length, dtype=name)
        summed = {
            "decode": work.decode(asked), "prefill": work.prefill(asked), "training": work.train(Run(4, length, name)),
        }  # fmt: skip
        for phase, taken in _phases(bench, config, dtype, rows=4, length=length).items():
            found.setdefault(phase, []).append((summed[phase], taken))
    return {phase: fitted(pairs) for phase, pairs in found.items()}


def fitted(pairs: Sequence[tuple[Phase, float]]) -> tuple[float, float]:
    """How many times what is multiplied, and what goes number by number, models take: phases with seconds measured.

    The least squares of the errors in speed, neither below `LEAST`, by ever smaller steps.
    """

    def off(times: tuple[float, float]) -> float:
        planned = [times[0] * (phase.seconds - phase.passed_s) + times[1] * phase.passed_s for phase, _ in pairs]
        return sum((taken / seconds - 1.0) ** 2 for seconds, (_, taken) in zip(planned, pairs, strict=True))

    best, step = (1.0, 1.0), 0.5
    while step > FINE:
        ways = [max(LEAST, best[0] * f) for f in (1.0, 1 + step, 1 / (1 + step))]
        found = min(((x, max(LEAST, best[1] * f)) for x in ways for f in (1.0, 1 + step, 1 / (1 + step))), key=off)
        best, step = found, step if off(found) < off(best) else step / 2
    return best


def _phases(bench: Bench, config: ModelConfig, dtype: torch.dtype, *, rows: int, length: int) -> dict[str, float]:
    """Seconds of a model for a token behind `length` others, a prompt of `length`, and a training step over `rows`."""
    model = build(config, dtype=dtype).eval()
    pack(model)
    engine, token = Engine(model), torch.ones(1, dtype=torch.int64)
    session = engine.start([[1] * length], room=1 << 12)
    decode = bench.seconds(lambda: session.advance(token))
    prefill = bench.seconds(lambda: engine.start([[1] * length], room=1))
    return {"decode": decode, "prefill": prefill, "training": bench.seconds(_step(config, dtype, rows, length))}


def _step(config: ModelConfig, dtype: torch.dtype, rows: int, length: int) -> Callable[[], Any]:
    """A training step over `rows` rows of `length` tokens."""
    cfg = TrainConfig(steps=1 << 30, batch_size=rows)
    model = build(config).train()
    pick_product(model, torch.device("cpu"))
    optimizer, tokens = make_optimizer(model, cfg), torch.ones(rows, length, dtype=torch.int64)
    places = {"doc": torch.zeros(rows, length, dtype=torch.int32), "at": torch.arange(length).expand(rows, length)}
    batch = Batch(tokens, tokens, **places, n_targets=rows * length, packed=False, padded=False)
    return partial(training_step, model, optimizer, [batch], index=0, cfg=cfg, precision=torch_dtype(dtype))
