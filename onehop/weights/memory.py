"""How much memory a checkpoint takes as loaded, and whether this machine has it: said, or refused, before loading."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from onehop.base.errors import CheckpointError
from onehop.base.units import human_bytes
from onehop.model.transformer import Transformer

Report = Callable[[str], None]
SMALLER = (torch.float32, torch.bfloat16)  # what is offered where a model does not fit, the most exact first
CGROUPS = {
    "/sys/fs/cgroup": ("memory.max", "memory.current"),
    "/sys/fs/cgroup/memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def refuse_what_does_not_fit(
    model: Transformer,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    stored: int,
    where: Path,
    report: Report | None,
) -> None:
    """Tell in one line what the file takes, the model as loaded, and what is free; refuse what is more than that.

    model: on the meta device. stored: bytes in the file. Raises CheckpointError with the cheapest changes.
    """
    needed, free = loaded_bytes(model, dtype), free_bytes(torch.device(device))
    name = _name(dtype)
    left = "" if free is None else f", {human_bytes(free)} free"
    if report is not None:
        report(f"{human_bytes(stored)} in files, {human_bytes(needed)} in memory as {name}{left}")
    if free is None or needed <= free:
        return
    fits = [other for other in SMALLER if loaded_bytes(model, other) < min(needed, free)]
    other = (
        f"dtype={str(fits[0]).removeprefix('torch.')} ({human_bytes(loaded_bytes(model, fits[0]))}), " if fits else ""
    )
    raise CheckpointError(
        f"{where} needs {human_bytes(needed)} as {name}, but {human_bytes(free)} are free on {device}. "
        f"Use {other}a smaller model, or free some memory."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def loaded_bytes(model: Transformer, dtype: torch.dtype) -> int:
    """Bytes of the parameters in `dtype`, and of the buffers, which keep their own."""
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return buffers + sum(p.numel() for p in model.parameters()) * dtype.itemsize


def free_bytes(device: torch.device) -> int | None:
    """Memory that can be had without swapping, within this process's limit; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [n for n in (_system_free(), *map(_group_free, CGROUPS)) if n is not None]
    return min(found) if device.type == "cpu" and found else None


def _system_free() -> int | None:
    """`MemAvailable` of Linux: free pages and those that caches give back."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        known = hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group_free(folder: str) -> int | None:
    """What a container's limit leaves, caches that it can give back counted as free; None without a limit."""
    try:
        most, used = ((Path(folder) / name).read_text().strip() for name in CGROUPS[folder])
        stat = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
        return None if most == "max" else int(most) - int(used) + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
