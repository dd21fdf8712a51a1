"""Whether torch.compile has what it needs here, and what it ends with where it cannot go on."""

import importlib.util
import shutil
from types import FunctionType
from typing import Any

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


def apart(function: Any) -> Any:
    """The same function as another: the compiler keeps graphs, and counts them, by a function's code."""
    twin = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def failures() -> tuple[type[Exception], ...]:
    """What the compiler ends with where it cannot go on; looked up only then, as it takes seconds to load."""
    dynamo, inductor = torch._dynamo.exc, torch._inductor.exc
    return dynamo.TorchDynamoException, dynamo.FailOnRecompileLimitHit, inductor.InductorError


def in_short(error: Exception) -> str:
    """What failed, and how, in one line."""
    return " ".join(str(error).split("\n")[:2])
