"""What a run was planned to take beside what it took; and how a recipe trains, as the planner asks."""

from typing import Any

from onehop.base.units import human_bytes, human_count
from onehop.config.model import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.cost.devices import Device
from onehop.cost.planned import Asked, Plan


def wishes(train: TrainConfig, context: int | None, *, packed: bool = False) -> dict[str, Any]:
    """Fields of Asked for a way to train, in rows of `context` tokens; without steps it says nothing about tokens."""
    rows = train.micro_batch or train.batch_size
    out: dict[str, Any] = {"train_rows": rows, "train_context": context, "micro_batches": train.batch_size // rows}
    out |= {"optimizer": train.optimizer, "packed": packed}
    if train.steps and context is not None:
        out["tokens"] = train.steps * train.batch_size * context
    if train.precision != "auto":
        out["precision"] = train.precision
    return out | {"recompute": train.recompute, "loss_chunk": train.loss_chunk, "average": train.ema is not None}


def account(
    config: ModelConfig,
    asked: Asked,
    *,
    live: float | None,
    resident: float | None,
    tokens_per_s: float,
    device: Device | None,
    on_cpu: bool,
) -> str:
    """One line: bytes of tensors at the peak, planned and `live`; `resident` memory; tokens/s, and those planned."""
    planned = Plan(config).training_memory(asked, on_cpu=on_cpu).live
    memory = f"memory at the peak: {human_bytes(planned)} of tensors planned"
    if live is not None:
        memory += f", {human_bytes(live)} tracked ({planned / live - 1:+.1%})"
    if resident is not None:
        memory += f", {human_bytes(resident)} resident in all"
        if device is not None and "training" in device.resident:
            held = device.resident["training"].of(planned, planned)
            memory += f" and {human_bytes(held)} planned ({held / resident - 1:+.0%})"
    speed = f"{human_count(tokens_per_s)} tokens/s"
    if device is not None and device.flops:
        expected = Plan(config).times(device, asked)["training"].tokens_per_s
        speed += f", {human_count(expected)} planned ({expected / tokens_per_s - 1:+.0%})"
    return f"{memory}; {speed}"
