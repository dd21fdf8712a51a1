"""The base of every config: frozen, hashable, no unknown keys; and fields whose class depends on their `kind`."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from onehop.base.choices import Choices
from onehop.base.errors import ConfigError


class Part(BaseModel):
    """A node of the config tree. Two equal configs are interchangeable: they hash alike and build the same model."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=False)


class Kind(Part):
    """A part that comes in several kinds, told apart by the name in `kind`."""

    kind: str


P = TypeVar("P", bound=Kind)


def by_kind(table: Choices[type[P]], default: str | None = None) -> Callable[[Any], Any]:
    """A validator that reads 'rope', {'kind': 'rope', 'theta': 1e6} or a finished config by the row of `table`.

    `default` is the kind of a table without one. Raises ConfigError for an unknown kind.
    """

    def validate(value: Any) -> Any:
        if isinstance(value, Kind):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise ConfigError(f"{table.what} needs a kind ({', '.join(table.names())}) or a table, not {value!r}")
        kind = value.get("kind", default)
        if kind is None:
            raise ConfigError(f"{table.what} needs a kind: one of {', '.join(table.names())}")
        return table.get(kind).model_validate({**value, "kind": kind})

    return validate


def as_tuple(value: Any) -> Any:
    """One name where a list is expected: 'a' -> ('a',)."""
    return (value,) if isinstance(value, str) else value
