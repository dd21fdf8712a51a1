"""pydantic's findings as one line each: path, what was given, what is needed."""

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from onehop.base.errors import ConfigError, nearest


def refusal(error: ValidationError, root: type[BaseModel], prefix: str = "") -> ConfigError:
    """The first finding of `error` as a ConfigError; an unknown key is answered with the nearest known one."""
    finding = error.errors()[0]
    path = prefix + ".".join(str(step) for step in finding["loc"])
    given = finding.get("input")
    if finding["type"] == "extra_forbidden":
        return ConfigError(unknown_key(path, known_keys(root, prefix)))
    if finding["type"] == "missing":
        return ConfigError(f"{path} is missing: it has no default. Set {path}=…")
    shown = repr(given) if len(repr(given)) < 80 else f"{repr(given)[:77]}…"
    return ConfigError(f"{path}={shown}: {finding['msg'][0].lower()}{finding['msg'][1:]}")


def unknown_key(path: str, known: Iterable[str]) -> str:
    """'train.step does not exist. Did you mean train.steps?', looking at the whole path, then at its last word."""
    known = list(known)
    last = path.rsplit(".", 1)[-1]
    same_word = [key for key in known if key.rsplit(".", 1)[-1] == last]
    close = same_word[0] if same_word else nearest(path, known)
    if close is None:
        word = nearest(last, {key.rsplit(".", 1)[-1] for key in known})
        close = next((key for key in known if key.rsplit(".", 1)[-1] == word), None)
    return f"{path} does not exist. " + (f"Did you mean {close}?" if close else "See onehop train --help for the keys.")


def known_keys(root: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted paths of all fields below `root`; a field that comes in kinds contributes the keys of every kind."""
    keys: dict[str, None] = {}
    for name, field in root.model_fields.items():
        keys[prefix + name] = None
        for cls in _models(field.annotation):
            for sub in (cls, *_subclasses(cls)):
                keys.update(dict.fromkeys(known_keys(sub, f"{prefix}{name}.")))
    return list(keys)


def _subclasses(cls: type) -> Iterable[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in get_args(annotation) for m in _models(arg)]
