"""What stands after the recipe on the command line: `train.steps=100 data.files=a.txt,b.txt`."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from onehop.base.errors import ConfigError
from onehop.config.keys import known_keys, pattern_of, takes_list, takes_only_text
from onehop.config.raw import KINDS, Raw
from onehop.config.recipe import Recipe

Overrides = Iterable[str] | Mapping[str, Any]


def as_layer(overrides: Overrides) -> Raw:
    """Overrides as one table: 'train.steps=100' or {'train.steps': 100} -> {'train': {'steps': 100}}.

    The order does not matter, except that of two values for one key the later wins. Raises ConfigError for a word
    that is no override, and for two that contradict each other.
    """
    layer: Raw = {}
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            _put(layer, str(key).split("."), str(value) if isinstance(value, Path) else value)
        return layer
    fields = known_keys(Recipe)
    for word in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, text = word.partition("=")
        key = key.strip()
        if key.startswith("-"):
            raise ConfigError(
                f"{word} is not an option here: {spelling(key, text) or 'keys are written train.steps=10'}"
            )
        if not equals or not all(key.split(".")):
            raise ConfigError(f"{word!r} is not an override: write key=value, for example train.steps=10")
        _put(layer, key.split("."), parse_value(text.strip() or text, fields.get(pattern_of(key), [])))
    return layer


def parse_value(text: str, fields: list[FieldInfo]) -> Any:
    """A value as typed: a TOML literal where it is one, a list as a,b for a key that takes a list, else text."""
    only_text = bool(fields) and all(takes_only_text(field) for field in fields)
    if any(takes_list(field) for field in fields) and not text.startswith("["):
        return [_one(item.strip(), only_text) for item in text.split(",") if item.strip()]
    if text.startswith(("[", "{")):
        return _literal(text)
    return _one(text, only_text)


def spelling(flag: str, value: str | None = None) -> str | None:
    """How to write a flag that is really a key of the recipe: '--steps', '10' -> 'write train.steps=10', else None."""
    name, _, inline = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    shown = inline or value or "…"
    keys = list(known_keys(Recipe))
    if name in keys:
        return f"write {name}={shown}"
    order = ("train.", "data.", "model.")
    found = [key for key in keys if key.rpartition(".")[2] == name and not key.startswith("model.encoder")]
    found.sort(key=lambda key: (next((i for i, top in enumerate(order) if key.startswith(top)), -1), key.count(".")))
    return f"write {found[0]}={shown}" if found else None


def _one(text: str, only_text: bool) -> Any:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text if only_text and not quoted else _literal(text)


def _literal(text: str) -> Any:
    """The value of a TOML literal, or the text itself."""
    try:
        table = tomllib.loads(f"x = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return table["x"] if len(table) == 1 else text


def _put(layer: Raw, words: list[str], value: Any) -> None:
    """Set a value at a path; a table and a short form of the same part ('moe', n_experts=8) become one table."""
    *above, last = words
    key = ".".join(words)
    table = layer
    for word in above:
        inner = table.setdefault(word, {})
        if isinstance(inner, str) and word in KINDS:
            inner = table[word] = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{key} and {word}={inner!r} contradict: {word} cannot be a value and a table. Leave one out."
            )
        table = inner
    given = table.get(last)
    if isinstance(value, Mapping):
        value = dict(value)
        for word, item in value.items():
            _put(layer, [*words, str(word)], item)
        if not value:
            table.setdefault(last, {})
    elif isinstance(given, dict) and isinstance(value, str) and last in KINDS:
        given["kind"] = value
    elif isinstance(given, dict):
        raise ConfigError(f"{key}={value!r} and {key}.{next(iter(given), '…')} contradict. Leave one out.")
    else:
        table[last] = value
