"""Whether torch.compile has what it needs here."""

import importlib.util
import shutil

import torch


def no_compiler(device: torch.device) -> str | None:
    """Why nothing is compiled here; None where torch.compile has what it needs."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "there is no C++ compiler here, which torch.compile needs on a CPU: install g++ or clang"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed, which torch.compile needs on a GPU: pip install triton"
    if device.type == "mps":
        return "torch.compile is not relied on here on mps"
    return None
