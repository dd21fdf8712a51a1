"""A table from names that users write to the thing that implements them."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from onehop.base.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Choices(Generic[T]):
    """Named rows, fixed by the library; a user's own part may add one (`add`), never replace one."""

    def __init__(self, what: str, rows: Mapping[str, T]):
        self.what = what
        self._rows = dict(rows)
        self._own: dict[str, str] = {}

    def get(self, name: str) -> T:
        """The row called `name`. Raises ConfigError with the nearest name."""
        if name not in self._rows:
            raise ConfigError(f"{self.what} {name!r} does not exist. {did_you_mean(str(name), self._rows)}")
        return self._rows[name]

    def add(self, name: str, row: T, *, source: str = "") -> None:
        """Add a user's own row. The same source may add its row again (a file that is read twice); others may not."""
        if name in self._rows and not (source and self._own.get(name) == source):
            raise ConfigError(f"{self.what} {name!r} exists already. Give your own part another name.")
        self._rows[name] = row
        self._own[name] = source

    def is_own(self, name: str) -> bool:
        """Whether `name` was added by a user's file."""
        return name in self._own

    def names(self) -> list[str]:
        return list(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def items(self) -> Iterator[tuple[str, T]]:
        return iter(self._rows.items())
