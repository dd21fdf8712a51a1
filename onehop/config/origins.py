"""Where each value of a resolved recipe comes from: `--explain`."""

from collections.abc import Iterator
from typing import Any

from onehop.config.expand import FILLED
from onehop.config.keys import BY_NAME
from onehop.config.model import StackConfig
from onehop.config.part import Part
from onehop.config.raw import Raw, with_named_blocks


def leaves(config: Part, *, always_named: bool = False) -> dict[str, Any]:
    """Every value by the key that sets it; where a stack has one block its name is left out, as a user would."""
    return dict(_leaves(config, "", always_named))


class Origins:
    """Filled layer by layer; a later layer's mention of a key replaces an earlier one's."""

    def __init__(self) -> None:
        self._by_key: dict[str, str] = {}

    def add(self, table: Raw, origin: str, merged: Raw) -> None:
        """Note what `table` mentions of `merged`, which is all layers up to this one; forget keys that it dropped."""
        said = dict(_flat(_named(table), ""))
        now: dict[str, str] = {}
        for key in dict(_flat(merged, "")):
            ways = [key, _without_block(key), key.removesuffix(".kind"), _without_block(key).removesuffix(".kind")]
            if any(way in said for way in ways):
                now[key] = origin
            elif key in self._by_key:
                now[key] = self._by_key[key]
        self._by_key = now

    def of(self, config: Part) -> dict[str, str]:
        """Key -> origin for every leaf of the resolved config."""
        named = leaves(config, always_named=True)
        return {key: self._of(full) for key, full in zip(leaves(config), named, strict=True)}

    def _of(self, key: str) -> str:
        said = self._by_key.get(key) or self._by_key.get(key.removesuffix(".kind"))
        if said:
            return said
        for ending, source in FILLED.items():
            if key.endswith(f".{ending}") and (ending not in ("sees", "position.kind") or ".cross." in key):
                return f"filled in ({source})"
        return "default"


def _leaves(config: Part, prefix: str, always_named: bool) -> Iterator[tuple[str, Any]]:
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name == "blocks" and isinstance(config, StackConfig):
            for block in value:
                short = len(value) == 1 and not always_named
                inner = prefix if short else f"{prefix}blocks.{block.name}."
                yield from ((k, v) for k, v in _leaves(block, inner, always_named) if k != f"{inner}name")
        elif value and name in BY_NAME:
            for part in value:
                inner = f"{prefix}{name}.{part.name}."
                yield from ((k, v) for k, v in _leaves(part, inner, always_named) if k != f"{inner}name")
        elif isinstance(value, Part):
            yield from _leaves(value, f"{prefix}{name}.", always_named)
        else:
            yield prefix + name, value


def _flat(table: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif not (value in (None, "none") and key in FILLED):  # left out on purpose: it is filled in
            yield f"{prefix}{key}", value


def _named(table: Raw) -> Raw:
    model = table.get("model")
    if not isinstance(model, dict):
        return table
    model = with_named_blocks(model, "model.")
    if isinstance(model.get("encoder"), dict):
        model = {**model, "encoder": with_named_blocks(model["encoder"], "model.encoder.")}
    return {**table, "model": model}


def _without_block(key: str) -> str:
    """'model.blocks.local.ffn.kind' -> 'model.ffn.kind'."""
    words = key.split(".")
    if "blocks" not in words:
        return key
    at = words.index("blocks")
    return ".".join(words[:at] + words[at + 2 :])
