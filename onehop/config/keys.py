"""Every key that a config knows, by its dotted path."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

NAME = "NAME"  # stands for a block's or a source's name in a path
BY_NAME = ("blocks", "mixture")  # fields whose parts are told apart by name


def known_keys(root: type[BaseModel], prefix: str = "") -> dict[str, list[FieldInfo]]:
    """Dotted paths below `root` and what may stand there: several fields where kinds of a part share a key."""
    keys: dict[str, list[FieldInfo]] = {}
    for name, field in user_fields(root).items():
        keys.setdefault(prefix + name, []).append(field)
        inner = f"{prefix}{name}.{NAME}." if name in BY_NAME else f"{prefix}{name}."
        for cls in classes(field):
            for path, fields in known_keys(cls, inner).items():
                keys.setdefault(path, []).extend(fields)
    return keys


def meanings(root: type[BaseModel]) -> dict[str, str]:
    """What each key is for, and what it may be where that is a choice; blocks by name and encoders have the same."""
    found = {}
    for path, fields in known_keys(root).items():
        if f".blocks.{NAME}." in path or ".encoder." in path:
            continue
        said = dict.fromkeys(field.description for field in fields if field.description)
        choices = dict.fromkeys(choice for field in fields for choice in _choices(path, field))
        if said or choices:
            words = " / ".join(said)
            found[path] = f"{words} [{', '.join(choices)}]".lstrip() if choices else words
    return found


def _choices(path: str, field: FieldInfo) -> Iterator[str]:
    """The words that a field takes; the `kind` of a part is told by the default of each of its classes."""
    if path.endswith(".kind"):
        yield str(field.default)
        return
    for annotation in _alternatives(field.annotation):
        if get_origin(annotation) is Literal:
            yield from map(str, get_args(annotation))


def user_fields(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of one table."""
    own = getattr(cls, "user_fields", None)
    return own() if own else dict(cls.model_fields)


def classes(field: FieldInfo) -> list[type[BaseModel]]:
    """The config classes that a field takes: one, or one for each kind, or none for a plain value."""
    return list(dict.fromkeys(_classes(field.annotation, field.metadata)))


def pattern_of(path: str) -> str:
    """A path as `known_keys` writes it: 'model.blocks.local.ffn' -> 'model.blocks.NAME.ffn'."""
    words = path.split(".")
    return ".".join(NAME if i and words[i - 1] in BY_NAME else word for i, word in enumerate(words))


def takes_list(field: FieldInfo) -> bool:
    """Whether the value is a list (of plain values)."""
    return any(get_origin(t) is tuple for t in _alternatives(field.annotation)) and not classes(field)


def takes_so_many(field: FieldInfo) -> int | None:
    """How many values a list must have; None where it may have any number, or is none."""
    args = next((get_args(t) for t in _alternatives(field.annotation) if get_origin(t) is tuple), (...,))
    return None if Ellipsis in args else len(args)


def takes_only_text(field: FieldInfo) -> bool:
    """Whether each value is text, or each item where the value is a list."""
    kinds = list(_alternatives(field.annotation))
    items = [arg for t in kinds if get_origin(t) is tuple for arg in get_args(t) if arg is not Ellipsis]
    return all(t is str or _is_text_choice(t) for t in (items or kinds) if t is not type(None))


def _is_text_choice(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and all(isinstance(v, str) for v in get_args(annotation))


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The members of a union, without their annotations."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (None, tuple, list, dict, Literal):
        yield annotation
    else:
        for member in get_args(annotation):
            yield from _alternatives(member)


def _classes(annotation: Any, metadata: Any = ()) -> Iterator[type[BaseModel]]:
    for note in metadata:
        table = getattr(note.func, "table", None) if isinstance(note, BeforeValidator) else None
        if table is not None:
            yield from (row for _, row in table.items())
            return
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        yield from _classes(inner, notes)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for member in get_args(annotation):
            yield from _classes(member)
