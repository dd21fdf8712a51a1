"""The questions that `onehop plan` answers, and which of its options each of them heeds: the others are refused."""

from collections.abc import Mapping
from typing import Any

from onehop.base.errors import ConfigError

ABOUT = {"model", "keys", "parts", "device", "context", "dtype", "cache_dtype"}
# What is asked, by its option, before what is asked by none; each with the options that it heeds.
HEEDS: dict[str, set[str]] = {
    "measure": set(),
    "fit_law": {"model", "keys"},  # more files: a shell writes them behind the first
    "budget": {"device", "mfu", "price", "serve"},
    "sweep": {*ABOUT, "batch", "tokens", "out"},
    "what_fits": ABOUT,
    "what_if": {*ABOUT, "batch", "tokens"},
    "plan": {*ABOUT, "batch", "tokens"},
    "machine": {"device"},
}
OF_A_MODEL = ("sweep", "what_fits", "what_if", "plan")
NEEDS = {"out": "sweep", "mfu": "budget", "price": "budget", "serve": "budget"}


def mode(options: Mapping[str, Any]) -> str:
    """Which question the options ask. Raises ConfigError naming one that this question would not heed."""
    given = [name for name, value in options.items() if value is not None and value is not False and value != []]
    asked = [name for name in HEEDS if name in given] or ["plan" if "model" in given else "machine"]
    found, model = asked[0], "model" in given
    if found in OF_A_MODEL and not model:
        raise ConfigError(f"{_flag(found)} needs a model, for example onehop plan quickstart {_flag(found)}")
    for name in given:
        if name != found and name not in HEEDS[found]:
            raise ConfigError(_refusal(name, found))
    return found


def _refusal(name: str, found: str) -> str:
    if found in ("plan", "machine"):
        if name in NEEDS:
            return f"{_flag(name)} does nothing without {_flag(NEEDS[name])}. Add that, or leave it out."
        return f"{_flag(name)} needs a model, for example onehop plan quickstart {_flag(name)} …"
    return f"{_flag(name)} does nothing beside {_flag(found)}. Ask one thing at a time."


def _flag(name: str) -> str:
    """An option as it is typed; the words without dashes by what they are."""
    words = {"model": "a model", "keys": "a key"}
    return words.get(name, f"--{name.replace('_', '-')}")
