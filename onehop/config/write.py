"""Configs as text that reads back as equal configs."""

import json
from typing import Any

import tomli_w

from onehop.config.keys import BY_NAME
from onehop.config.model import StackConfig
from onehop.config.part import Part
from onehop.config.raw import Raw


def to_toml(config: Part) -> str:
    """A recipe or a model's config as TOML; none is left out, or written `"none"` where the default differs."""
    return tomli_w.dumps(to_dict(config))


def to_json(config: Part) -> str:
    """A recipe or a model's config as JSON, in the same shape as the TOML."""
    return json.dumps(to_dict(config), indent=2, ensure_ascii=False) + "\n"


def to_dict(config: Part) -> Raw:
    """A config as plain tables, lists and values, with blocks by name; one nameless block is written out in place."""
    out: Raw = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name == "blocks" and isinstance(config, StackConfig):
            named = {block.name: {k: v for k, v in to_dict(block).items() if k != "name"} for block in value}
            out.update(named["block"] if list(named) == ["block"] else {"blocks": named})
        elif value and name in BY_NAME:
            out[name] = {part.name: {k: v for k, v in to_dict(part).items() if k != "name"} for part in value}
        elif value is not None:
            out[name] = _plain(value)
        elif not field.is_required() and field.get_default(call_default_factory=True) is not None:
            out[name] = "none"
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
