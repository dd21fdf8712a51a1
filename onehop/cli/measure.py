"""What `onehop plan --measure` measures, and where it is kept: this machine's rates at onehop's own work."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from onehop.config.model import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.cost.devices import RATES, Device, Pace
from onehop.data.loader import Batch
from onehop.generate.engine import Engine
from onehop.machine.here import Machine
from onehop.machine.measure import (
    Bench,
    attention_rates,
    function_rates,
    linear_rates,
    pass_bandwidth,
    peak,
    read_bandwidth,
    trained_rates,
)
from onehop.model.build import build, torch_dtype
from onehop.parts.attend import attend
from onehop.parts.linear import Linear, pack
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import computing, has_native_bf16, pick_product, product_for
from onehop.training.step import training_step

# What is measured at: widths w of linear maps from w to 2 · w, widths of heads, and tokens that attend to each other.
WIDTHS, TRAINED_WIDTHS, HEAD_WIDTHS, LENGTHS = (256, 1024), (128, 384, 1024), (32, 64, 128), (64, 256, 1024)
LAYERS = 8  # of the tiny model whose layers cost next to no arithmetic


def measure(machine: Machine, *, bench: Bench, report: Callable[[str], None], small: int = 1) -> Device:
    """This machine's CPU as a device. `small` divides the sizes that are measured (for tests)."""
    dtypes = [torch.float32] + ([torch.bfloat16] if has_native_bf16(torch.device("cpu")) else [])
    flops: dict[str, float] = {}
    rates: dict[str, dict[str, dict[int, dict[int, float]]]] = {key: {} for key in RATES}
    layers: dict[str, dict[str, float]] = {"decode": {}, "prefill": {}, "training": {}}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        report(f"products and attention in {name}")
        found = _rates(bench, dtype, small)
        products = [rate for kind in ("linear", "trained") for by in found[kind].values() for rate in by.values()]
        flops[name] = max(peak(bench, dtype, width=2048 // small), *products)
        for kind, by_width in found.items():
            rates[kind][name] = by_width
        report(f"a layer's own time in {name}")
        layers["decode"][name], layers["prefill"][name] = _inference_layer(bench, dtype)
        layers["training"][name] = _training_layer(bench, dtype)
    report("memory")
    bandwidth, passes = read_bandwidth(bench, nbytes=(1 << 29) // small), pass_bandwidth(bench)
    functions = function_rates(bench, torch.nn.functional.silu)
    pace = Pace(**rates, passes=passes, functions=functions, per_layer=layers)
    threads = torch.get_num_threads()
    where = f"{machine.processor}, {threads} thread{'s' * (threads != 1)}, measured"
    return Device("this machine", float(machine.memory), bandwidth, flops, where, "cpu", pace)


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
    return dict(zip(RATES, (linear, trained, forward, backward), strict=True))


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


def _tiny() -> ModelConfig:
    table: dict[str, object] = {"vocab_size": 64, "d_model": 64, "n_layers": LAYERS, "max_len": 1 << 20}
    table |= {"attention": {"n_heads": 2, "n_kv_heads": 1}, "ffn": {"kind": "gated", "d_ff": 64}}
    return ModelConfig.model_validate(table)


def _inference_layer(bench: Bench, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of a layer of next to no arithmetic: for a token that is decoded, and for a short prompt."""
    model = build(_tiny(), dtype=dtype).eval()
    pack(model)
    engine, token = Engine(model), torch.ones(1, dtype=torch.int64)
    session = engine.start([[1, 1]], room=1 << 16)
    step = bench.seconds(lambda: session.advance(token))
    return step / LAYERS, bench.seconds(lambda: engine.start([[1] * 8], room=8)) / LAYERS


def _training_layer(bench: Bench, dtype: torch.dtype) -> float:
    """Seconds of a layer of next to no arithmetic in a training step."""
    cfg = TrainConfig(steps=1 << 30, batch_size=1)
    model = build(_tiny()).train()
    pick_product(model, torch.device("cpu"))
    optimizer, tokens = make_optimizer(model, cfg), torch.ones(1, 8, dtype=torch.int64)
    at = torch.arange(8).expand(1, 8)
    batch = Batch(
        tokens, tokens, doc=torch.zeros(1, 8, dtype=torch.int32), at=at, n_targets=8, packed=False, padded=False
    )
    step = partial(training_step, model, optimizer, [batch], index=0, cfg=cfg, precision=torch_dtype(dtype))
    return bench.seconds(step) / LAYERS
