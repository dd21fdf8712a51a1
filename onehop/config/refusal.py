"""pydantic's findings as one line: the path that the user wrote, what was given, what is needed, a way out."""

import difflib
from typing import Any

from pydantic import BaseModel, ValidationError

from onehop.base.errors import ConfigError
from onehop.config.keys import NAME, classes, known_keys, pattern_of, takes_so_many, user_fields

_ORDER = {"extra_forbidden": 0, "missing": 2}  # an unknown key explains a missing one, so it is told first
_OWN = ("rule", "value", "unknown_kind")


class UnknownKind(ConfigError):
    """A kind that no table knows: perhaps a part of the user's own whose file was not named."""


def refusal(error: ValidationError, root: type[BaseModel]) -> ConfigError:
    """The most telling finding of `error` as a ConfigError."""
    finding = min(error.errors(), key=lambda f: _ORDER.get(f["type"], 1))
    kind, given, message = finding["type"], finding.get("input"), finding["msg"]
    path = user_path(finding["loc"])
    if (told := _count(finding["loc"], kind, given, root)) is not None:
        return ConfigError(told)
    if kind == "extra_forbidden":
        return ConfigError(unknown_key(path, root))
    if kind == "missing":
        return ConfigError(f"{path} is missing: it has no default. Set {path}=…")
    if kind == "unknown_kind":
        return UnknownKind(path + message)
    if kind in _OWN:
        return ConfigError(path + (f".{message}" if path and kind == "rule" else message))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = f"needs a table of keys, for example {path}.{_first_key(path, root)}=…"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
    shown = repr(given) if len(repr(given)) < 80 else f"{repr(given)[:77]}…"
    return ConfigError(f"{path}={shown}: {message[0].lower()}{message[1:]}" if path else f"{message} (not {shown})")


def _count(loc: tuple[int | str, ...], kind: str, given: Any, root: type[BaseModel]) -> str | None:
    """What to write where a key takes so many values and was given another number of them; None for another fault."""
    inside = kind == "missing" and isinstance(loc[-1], int)
    if not inside and kind not in ("too_long", "tuple_type"):
        return None
    path = user_path(loc[:-1] if inside else loc)
    field = next((field for field in known_keys(root).get(pattern_of(path), []) if takes_so_many(field)), None)
    if field is None:
        return None
    values = list(given) if isinstance(given, list | tuple) else [given]
    like = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else "…"
    shown = ",".join(map(str, values))
    return f"{path}={shown}: it takes {takes_so_many(field)} values, and this is {len(values)}. Write {path}={like}."


def user_path(loc: tuple[int | str, ...]) -> str:
    """Where a finding lies, as a key that can be typed: 'blocks.*' is every block, which needs no name."""
    return ".".join(str(step) for step in loc).replace(".blocks.*", "").removeprefix("blocks.*.")


def unknown_key(path: str, root: type[BaseModel]) -> str:
    """'train.step does not exist. Did you mean train.steps?': a sibling, else the same word or a like one elsewhere."""
    above, _, word = path.rpartition(".")
    keys = list(known_keys(root))
    table = pattern_of(above)
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == table]
    if word in siblings:  # known, but for another kind of this part
        return f"{path} does not exist for this kind of {above}. It belongs to {_owners(above, word, root)}."
    close = [(_likeness(word, key, key.rpartition(".")[0] == table), key) for key in keys]
    score, best = max(close, key=lambda pair: (pair[0], _shared(pair[1], path), -pair[1].count(".")))
    if score >= 0.6:
        shown = f"{above}.{best.rpartition('.')[2]}" if above and best.rpartition(".")[0] == table else best
        return f"{path} does not exist. Did you mean {shown}?"
    known = ", ".join(sorted(set(siblings)))
    return f"{path} does not exist. " + (f"{above or 'A config'} knows: {known}." if known else "Leave it out.")


def fields_at(path: str, root: type[BaseModel]) -> list[type[BaseModel]]:
    """The classes that may stand at a path below `root`."""
    return [cls for field in known_keys(root).get(pattern_of(path), []) for cls in classes(field)] if path else [root]


def _owners(path: str, word: str, root: type[BaseModel]) -> str:
    """The kinds of the part at `path` that have the key `word`."""
    found = {
        str(cls.model_fields["kind"].default): None
        for cls in fields_at(path, root)
        if word in user_fields(cls) and "kind" in cls.model_fields
    }
    return " and ".join(f"{path}.kind={kind}" for kind in found)


def _first_key(path: str, root: type[BaseModel]) -> str:
    found = [name for cls in fields_at(path, root) for name in user_fields(cls)]
    return found[0] if found else NAME


def _likeness(word: str, key: str, sibling: bool) -> float:
    """How much a key's last word looks like `word`, 0 to 1; a neighbour in the same table counts a little more."""
    return difflib.SequenceMatcher(None, word, key.rpartition(".")[2]).ratio() + (0.1 if sibling else 0.0)


def _shared(key: str, path: str) -> int:
    """How many leading words two paths share."""
    n = 0
    for a, b in zip(key.split("."), pattern_of(path).split("."), strict=False):
        if a != b:
            break
        n += 1
    return n
