"""Which sampling values count: the caller's, else the checkpoint's own, else onehop's; each with where it comes from."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from onehop.base.errors import RequestError, did_you_mean
from onehop.generate.request import Request

# What nobody has decided. Everything else starts switched off, as Request says.
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 256}
NAMES = tuple(field.name for field in fields(Request) if field.name != "prompt")
FROM_CALLER, FROM_CHECKPOINT, FROM_ONEHOP = "argument", "generation_config.json", "default"


def resolve(given: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Every option with its origin. None means "not given". Raises RequestError for a name that does not exist.

    `checkpoint` is generation_config.json: do_sample=false there means temperature 0, and do_sample=true without a
    temperature means 1. A seed that nobody gave is drawn afresh for each request, and said.
    """
    for name in given:
        if name not in NAMES:
            raise RequestError(f"{name!r} is not an option of generation. {did_you_mean(name, NAMES)}")
    own = _of_checkpoint(checkpoint)
    found: dict[str, tuple[Any, str]] = {}
    for field in fields(Request):
        if field.name == "prompt":
            continue
        if given.get(field.name) is not None:
            found[field.name] = (given[field.name], FROM_CALLER)
        elif field.name in own:
            found[field.name] = (own[field.name], FROM_CHECKPOINT)
        else:
            found[field.name] = (DEFAULTS.get(field.name, field.default), FROM_ONEHOP)
    return found


def _of_checkpoint(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a generation_config.json decides."""
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    own = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") is False:
        return own | {"temperature": 0.0}
    if config.get("do_sample"):
        own.setdefault("temperature", 1.0)
    return own
