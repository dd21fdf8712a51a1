"""Budgets: '1e21flops', '500 gpu-hours' or '$5000' as FLOPs; and runs that were measured as points of a law."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from onehop.base.errors import ConfigError, DataError
from onehop.base.units import human_flops
from onehop.config.read import read
from onehop.cost.devices import Device
from onehop.cost.planned import Plan

MFU = 0.4  # of the peak, where nothing is said
NUMBER = r"([0-9.]+(?:[eE][+-]?[0-9]+)?)"
UNITS = {
    "flops": ("flops", "flop"),
    "hours": ("gpuh", "gpuhours", "gpuhour", "hours", "hour", "h"),
    "money": ("usd", "dollars", "eur", "euro", "$", "€"),
}


def budget_flops(
    text: str, device: Device | None, *, mfu: float | None, price: float | None, dtype: str
) -> tuple[float, str]:
    """A budget as FLOPs, and in words how it became so. Raises ConfigError naming what is missing."""
    plain = re.sub(r"(?<=[a-z])-(?=[a-z])|[\s_,]", "", text.lower())
    match = re.fullmatch(rf"([$€]?){NUMBER}([a-z$€]*)", plain)
    unit = None if match is None else next((k for k, names in UNITS.items() if (match[1] or match[3]) in names), None)
    if match is None or unit is None:
        raise ConfigError(
            f"--budget {text!r}: write a number and flops, gpu-hours or usd, as in 1e21flops or 500gpu-hours."
        )
    amount = float(match[2])
    if not 0 < amount < float("inf"):
        raise ConfigError(f"--budget {text!r}: needs more than nothing, and less than everything.")
    if unit == "flops":
        if price is not None or mfu is not None:
            raise ConfigError(f"--budget {text!r} is in FLOPs already: leave out --price and --mfu.")
        return amount, human_flops(amount)
    mfu = MFU if mfu is None else mfu
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: a share of the peak, above 0 and at most 1. Well kept runs reach 0.3 to 0.5.")
    if device is None or not device.flops:
        raise ConfigError("--budget in hours or money needs --device: how many FLOPs an hour gives depends on it.")
    words = ""
    if unit == "money":
        if price is None or price <= 0:
            raise ConfigError(
                "--budget in money needs --price, what an hour of the device costs, for example --price 2.5"
            )
        words, amount = f"{amount:,.0f} {match[1] or match[3]} at {price:g} an hour: ", amount / price
    rate = device.peak(dtype) * mfu
    return amount * 3600 * rate, f"{words}{amount:,.0f} hours of {device.name} at {mfu:.0%} of its peak in {dtype}"


def points_of(files: Sequence[str]) -> list[tuple[float, float, float]]:
    """(N, D, loss) of runs: each metrics.jsonl's last validation loss; or a file's lines that hold all three."""
    out = []
    for name in files:
        file = Path(name)
        if not file.is_file():
            raise DataError(f"{name} is not there. Give the metrics.jsonl of runs, or lines with n, d and loss.")
        rows = [_object(line, name) for line in file.read_text().splitlines() if line.strip()]
        if rows and {"n", "d", "loss"} <= rows[0].keys():
            out += [(float(row["n"]), float(row["d"]), float(row["loss"])) for row in rows]
            continue
        held = [row for row in rows if row.get("val_loss") and row.get("tokens")]
        if not held:
            raise DataError(f"{name} holds no line with tokens and val_loss. Let the run reach an evaluation.")
        out.append((float(_parameters(file)), float(held[-1]["tokens"]), float(held[-1]["val_loss"])))
    return out


def _object(line: str, name: str) -> dict[str, float]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{name} is not JSON by lines ({error}). Give a metrics.jsonl.") from None
    if not isinstance(found, dict):
        raise DataError(f"{name} holds a line that is no object. Give a metrics.jsonl.")
    return found


def _parameters(file: Path) -> int:
    """The parameters of the run whose metrics these are, by the resolved recipe beside them."""
    recipe = file.parent / "recipe.toml"
    if not recipe.is_file():
        raise DataError(f"{file} has no recipe.toml beside it, which says how many parameters the run has.")
    try:
        return Plan(read(recipe).recipe.model).parameters.active
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise DataError(f"{recipe}: {error}") from error
