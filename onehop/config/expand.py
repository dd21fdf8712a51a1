"""The short forms of a model table written out: a preset laid below, common fields spread, derived values filled in."""

from typing import Any

from onehop.base.errors import did_you_mean
from onehop.config.part import broken_rule
from onehop.config.presets import PRESETS
from onehop.config.raw import Raw, merge_stacks

NEAR = 1024  # how far a number of heads that fits is looked for
# Leaves that are worked out where nobody gave them, and from what.
FILLED = {
    "n_kv_heads": "n_heads",
    "d_head": "d_model / n_heads",
    "pattern": "all blocks in turn",
    "sees": "cross-attention reads everything",
    "position.kind": "cross-attention has no positions",
}


def preset_of(raw: Raw, where: str = "") -> Raw | None:
    """The table of the preset that a model table starts from, if it names one."""
    name = raw.get("preset")
    if name is None or name == "none":
        return None
    if not isinstance(name, str) or name not in PRESETS:
        raise broken_rule(f"{where}preset={name!r} does not exist. {did_you_mean(str(name), PRESETS)}")
    return PRESETS[name]


def expand_blocks(raw: Raw) -> Raw:
    """A model table with every block complete."""
    preset = preset_of(raw)
    own = {key: value for key, value in raw.items() if key != "preset"}
    out = merge_stacks([own] if preset is None else [preset, own])
    _complete(out, out.get("d_model"), "")
    if isinstance(out.get("encoder"), dict):
        _complete(out["encoder"], out.get("d_model"), "encoder.")
    return out


def _complete(stack: Raw, d_model: Any, where: str) -> None:
    blocks = stack["blocks"]
    for name, block in blocks.items():
        if isinstance(block, dict):
            _fill_heads(block, d_model, where if len(blocks) == 1 else f"{where}blocks.{name}.")
    stack["pattern"] = stack.get("pattern") or list(blocks)
    stack["blocks"] = [{"name": name, **block} if isinstance(block, dict) else block for name, block in blocks.items()]


def _fill_heads(block: Raw, d_model: Any, where: str) -> None:
    for field in ("attention", "cross"):
        attention = block.get(field)
        if not isinstance(attention, dict):
            continue
        if field == "cross":
            attention = {"sees": "all", "position": {"kind": "none"}, **attention}
        empty = {k for k in ("n_kv_heads", "d_head") if attention.get(k) in (None, "none")}
        attention = {k: v for k, v in attention.items() if k not in empty}
        heads = _whole(attention.get("n_heads"))
        if heads:
            attention.setdefault("n_kv_heads", heads)
            width = _whole(d_model)
            if width and "d_head" not in attention:
                attention["d_head"] = _d_head(width, heads, f"{where}{field}")
        block[field] = attention


def _whole(value: Any) -> int | None:
    """A positive whole number, or None for what the field's own check will refuse."""
    try:
        number = int(value)
        return number if number > 0 and number == float(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _d_head(d_model: int, n_heads: int, path: str) -> int:
    if d_model % n_heads:
        most = min(n_heads, d_model)  # a damaged file may claim billions: the search is short
        near = next((d for d in range(most, max(most - NEAR, 0), -1) if d_model % d == 0), "fewer")
        raise broken_rule(
            f"{path}.n_heads={n_heads} does not divide d_model={d_model}. Use {near} heads, or give {path}.d_head."
        )
    return d_model // n_heads
