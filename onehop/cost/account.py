"""What a run was planned to take beside what it took; and how a recipe trains, as the planner asks."""

from typing import Any

from onehop.base.units import human_bytes, human_count
from onehop.config.recipe import TrainConfig
from onehop.cost.devices import Device


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
    planned: float,
    *,
    words: str,
    live: float | None,
    resident: float | None,
    tokens_per_s: float,
    expected: float | None,
    device: Device | None,
) -> str:
    """One line: bytes of tensors at the peak, planned (and in words) and `live`; `resident` memory; tokens/s.

    expected: the tokens/s that were planned. device: a CPU that tells what a process holds beside its tensors.
    """
    memory = f"memory at the peak: {words} of tensors planned"
    if live is not None:
        memory += f", {human_bytes(live)} tracked ({planned / live - 1:+.1%})"
    if resident is not None:
        memory += f", {human_bytes(resident)} resident in all"
        if device is not None and "training" in device.resident:
            held = device.resident["training"].of(planned, planned)
            memory += f" and {human_bytes(held)} planned ({held / resident - 1:+.0%})"
    speed = f"{human_count(tokens_per_s)} tokens/s"
    if expected is not None:
        speed += f", {human_count(expected)} planned ({expected / tokens_per_s - 1:+.0%})"
    return f"{memory}; {speed}"
