"""Where, how precisely and by which product to compute."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from onehop.base.errors import ConfigError
from onehop.machine.here import peak_resident
from onehop.parts.linear import multiply_by
from onehop.parts.product import Product, made_by_amd, onednn


def pick_device(name: str) -> torch.device:
    """auto: a CUDA device, else Apple's, else the CPU. Refuses a device that is not there."""
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if has[kind])
    if not has.get(name, False):
        there = ", ".join(kind for kind, present in has.items() if present)
        raise ConfigError(f"train.device={name} is not there. This machine has: {there}.")
    return torch.device(name)


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the hardware multiplies it natively, else float32."""
    if name == "auto":
        return torch.bfloat16 if has_native_bf16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def loss_scaler(device: torch.device, precision: torch.dtype) -> torch.amp.GradScaler | None:
    """What keeps small gradients from vanishing in float16 (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).

    bfloat16 has float32's range and needs none.
    """
    return torch.amp.GradScaler(device.type) if precision == torch.float16 else None


def memory(device: torch.device) -> int | None:
    """Most bytes that this process has held so far: on a GPU there, else in the machine's memory, if it tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_resident()


@contextmanager
def repeating(asked: bool) -> Iterator[None]:
    """A block in which torch takes only algorithms that repeat bit for bit, and refuses what has none."""
    if not asked:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        what = str(error).split(". ")[0]
        raise ConfigError(
            f"train.deterministic=true cannot be honoured: {what}. Set train.deterministic=false."
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


def computing(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Products in `precision`; weights, norms, softmax, sums and losses stay in float32."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, dtype=precision)


def has_native_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are native here and so faster than in float32.

    On a CPU: by AMX's tiles, or AVX-512's instructions on AMD. On Intel's the latter take 1.6 times as long as
    MKL's products in float32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return _cpu_has("amx_tile") or (_cpu_has("avx512_bf16") and made_by_amd())
    return False


def _cpu_has(feature: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{feature}_supported", lambda: False)())


def pick_product(model: nn.Module, device: torch.device) -> None:
    """Let every linear map below `model` compute by `product_for` its device."""
    multiply_by(model, product_for(device))


def product_for(device: torch.device) -> Product:
    """X · Wᵀ + b as training has it: in float32 on a CPU, by the library that has a fast path for its processor.

    MKL, PyTorch's usual one on x86, uses no AVX-512 on AMD's processors: oneDNN has twice its speed there, and nine
    tenths where there is only AVX2. The processor decides, and no measurement: a run that is resumed has to go on with
    the same sums.
    """
    by_onednn = device.type == "cpu" and made_by_amd() and _cpu_has("avx512") and torch.backends.mkl.is_available()
    return onednn if by_onednn and torch.backends.mkldnn.is_available() else F.linear
