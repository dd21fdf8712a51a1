"""Which sampling values count: the caller's, else the checkpoint's own, else onehop's; each with its origin."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from onehop.base.errors import RequestError, did_you_mean
from onehop.generate.request import Request
from onehop.lm.asked import FILE

# What is neither asked for nor said by the checkpoint. Every other option starts switched off, as Request says.
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 256}
OFF = {field.name: field.default for field in fields(Request) if field.name != "prompt"}
NAMES = tuple(OFF)


def resolve(given: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Every option's value and origin. None means "not given".

    Raises RequestError for a name that does not exist, and for an impossible value of the checkpoint that counts.
    `checkpoint` is the contents of its generation_config.json, where do_sample=false is temperature 0, and
    do_sample=true without a temperature is 1. A seed that nobody gave is drawn afresh for each request, and told with
    the answer.
    """
    for name in given:
        if name not in NAMES:
            raise RequestError(f"{name!r} is not an option of generation. {did_you_mean(name, NAMES)}")
    found: dict[str, tuple[Any, str]] = {name: (DEFAULTS.get(name, off), "default") for name, off in OFF.items()}
    found |= {name: (checkpoint[name], FILE) for name in NAMES if checkpoint.get(name) is not None}
    if isinstance(sampled := checkpoint.get("do_sample"), bool) and not (sampled and found["temperature"][1] == FILE):
        found["temperature"] = (float(sampled), f"{FILE} (do_sample)")
    found |= {name: (value, "argument") for name, value in given.items() if value is not None}
    for name, (value, origin) in found.items():
        if origin == FILE:
            _check(name, value)
    return found


def _check(name: str, value: Any) -> None:
    """Raises RequestError that names the checkpoint's file for a value of it that no request can have."""
    try:
        Request((0,), **{name: value})
    except RequestError as error:
        raise RequestError(f"{FILE}: {error}. Give another {name}, or mend that file.") from error
