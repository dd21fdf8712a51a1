"""Budgets: '1e21flops', '500 gpu-hours' or '$5000' as FLOPs; and runs that were measured as points of a law."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onehop.base.errors import ConfigError, DataError
from onehop.base.units import human_flops
from onehop.config.read import read
from onehop.cost.devices import Device
from onehop.cost.planned import Plan

GROUPS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+"  # of thousands
NUMBER = rf"((?:(?:{GROUPS}|[0-9]+)\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
LEAST, MOST = 1e9, 1e40  # FLOPs: below, a law's best model has a handful of parameters; above, nothing was ever asked
MFU = 0.4
UNITS = {
    "flops": ("flops", "flop"),
    "hours": ("gpuh", "gpuhours", "gpuhour", "hours", "hour", "h"),
    "money": ("usd", "dollars", "$", "eur", "euro", "€"),
}
SIGNS = {"$": ("", "$", "usd", "dollars"), "€": ("", "€", "eur", "euro")}  # and what may stand behind them


def budget_flops(
    text: str,
    device: Device | None,
    *,
    mfu: float | None = None,
    price: float | None = None,
    dtype: str,
    named: str | None = None,
) -> tuple[float, str]:
    """A budget as FLOPs, and in words how it became so. Raises ConfigError naming what is missing.

    named: how `device` was asked for, if it was.
    """
    amount, unit = _amount(text)
    given = {"--mfu": mfu, "--price": price, "--device": named}
    idle = {"flops": ("--mfu", "--price", "--device"), "hours": ("--price",), "money": ()}[unit]
    for option in idle:
        if given[option] is not None:
            raise ConfigError(f"{option} changes nothing for a budget in {unit}. Leave it out.")
    if unit == "flops":
        return _within(amount, text), human_flops(amount)
    mfu = MFU if mfu is None else mfu
    if not 0 < mfu <= 1:
        raise ConfigError(f"--mfu {mfu}: a share of the peak, above 0 and at most 1. Well kept runs reach 0.3 to 0.5.")
    if device is None or not device.flops:
        raise ConfigError("--budget in hours or money needs --device: how many FLOPs an hour gives depends on it.")
    words = ""
    if unit == "money":
        if price is None or not 0 < price < float("inf"):
            need = "--budget in money needs --price" if price is None else f"--price {price:g}: a number above 0"
            raise ConfigError(f"{need}, what an hour of the device costs, for example --price 2.5")
        words, amount = f"{amount:,.0f} at {price:g} an hour: ", amount / price
    flops = _within(amount * 3600 * device.peak(dtype) * mfu, text)
    return flops, f"{words}{amount:,.0f} hours of {device.name} at {mfu:.0%} of its peak in {device.multiplies(dtype)}"


def _within(flops: float, text: str) -> float:
    """Refuse a budget about which no law has anything to say."""
    if not LEAST <= flops <= MOST:
        raise ConfigError(f"--budget {text!r} is {flops:.3g} FLOPs: the laws are asked for {LEAST:g} to {MOST:g}.")
    return flops


def _amount(text: str) -> tuple[float, str]:
    """A number and what it counts."""
    plain = re.sub(r"(?<=[a-z])[-\s_]+(?=[a-z])", "", text.strip().lower())
    match = re.fullmatch(rf"([$€]?)\s*{NUMBER}\s*([a-z$€]*)", plain)
    unit = None if match is None else next((k for k, names in UNITS.items() if (match[3] or match[1]) in names), None)
    if match is not None and match[1] and match[3] not in SIGNS[match[1]]:
        raise ConfigError(f"--budget {text!r} has two units, {match[1]} and {match[3]}. Leave one out.")
    if re.search(r"[0-9][,_ ][0-9]", plain) and match is None:
        raise ConfigError(
            f"--budget {text!r}: commas stand between thousands, as in 1,000usd, and a point before fractions, as in "
            "1.5e21flops."
        )
    if match is None or unit is None:
        raise ConfigError(
            f"--budget {text!r}: write a number and flops, gpu-hours or usd, as in 1e21flops or 500gpu-hours."
        )
    amount = float(re.sub("[,_ ]", "", match[2]))
    if not 0 < amount < float("inf"):
        raise ConfigError(f"--budget {text!r}: needs more than nothing, and less than everything.")
    return amount, unit


def points_of(files: Sequence[str]) -> list[tuple[float, float, float]]:
    """(N, D, loss) of runs: each metrics.jsonl's last validation loss; or a file's lines that hold all three."""
    out = []
    for name in files:
        file = Path(name)
        if not file.is_file():
            what = "a folder" if file.is_dir() else "no ordinary file" if file.exists() else "not there"
            raise DataError(f"{name} is {what}. Give the metrics.jsonl of runs, or lines with n, d and loss.")
        rows = _rows(file)
        if rows and {"n", "d", "loss"} <= rows[0].keys():
            out += [(_number(row, "n", name), _number(row, "d", name), _number(row, "loss", name)) for row in rows]
            continue
        held = [row for row in rows if row.get("val_loss") and row.get("tokens")]
        if not held:
            raise DataError(f"{name} holds no line with tokens and val_loss. Let the run reach an evaluation.")
        out.append((float(_parameters(file)), _number(held[-1], "tokens", name), _number(held[-1], "val_loss", name)))
    return out


def _rows(file: Path) -> list[dict[str, Any]]:
    """The objects of a file, one a line."""
    try:
        text = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise DataError(f"{file} is not text in UTF-8 ({error}). Give a metrics.jsonl.") from None
    return [_object(line, str(file)) for line in text.splitlines() if line.strip()]


def _number(row: dict[str, Any], key: str, name: str) -> float:
    """A finite number above 0 that a row holds."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST:
        raise DataError(f"{name} holds a line with {key}={value!r}: a law needs a positive number there.")
    return float(value)


def _object(line: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
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
