"""How the weights of a checkpoint are quantised, as its config.json says: read by method, or refused. No torch."""

from dataclasses import dataclass
from typing import Any

from onehop.base.errors import CheckpointError

SAID = ("quantization_config", "compression_config")


@dataclass(frozen=True)
class Quantisation:
    """`mxfp4`, or `fp8` with one scale for each block of so many rows and columns."""

    method: str
    block: tuple[int, int] = (1, 32)


def quantisation(raw: dict[str, Any]) -> Quantisation | None:
    """What config.json says; None where nothing is quantised. Raises CheckpointError for every other method."""
    found = next((raw[key] for key in SAID if raw.get(key)), None)
    if found is None:
        return None
    method = found.get("quant_method", "unnamed") if isinstance(found, dict) else found
    if method == "mxfp4":
        return Quantisation("mxfp4")
    if method == "fp8":
        return Quantisation("fp8", _block(found))
    raise CheckpointError(
        f"the weights are quantised (quant_method={method}), which cannot be read. Use the unquantised checkpoint, or "
        "one in mxfp4 or fp8."
    )


def _block(found: dict[str, Any]) -> tuple[int, int]:
    block, fmt = found.get("weight_block_size"), found.get("fmt") or "e4m3"
    if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block) and fmt == "e4m3":
        return (block[0], block[1])
    raise CheckpointError(
        f"config.json: quantised by fp8 with fmt={fmt!r} and weight_block_size={block!r}, which cannot be read: it "
        "needs e4m3 and two whole numbers, as [128, 128]. Use the unquantised checkpoint."
    )
