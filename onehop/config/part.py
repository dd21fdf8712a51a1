"""The base of every config: frozen, hashable, no unknown keys; and fields whose class depends on their `kind`."""

from collections.abc import Iterable
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from onehop.base.choices import Choices
from onehop.base.errors import did_you_mean
from onehop.config.refusal import refusal


class Part(BaseModel):
    """A node of the config tree. Two equal configs are interchangeable: they hash alike and build the same model.

    The word `none` stands for no value wherever a field may have none (TOML has no other way to say so).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,  # a third of the time of the import, for commands that build no config
    )

    def __init__(self, **data: Any):
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            raise refusal(error, type(self)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # or parents would call it, and lose the path

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The config that `obj` (a dict or a finished config) describes. Raises ConfigError."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise refusal(error, cls) from None

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """As `model_validate`, for validators of an enclosing config: the finding travels up and gains its path."""
        return cls.__pydantic_validator__.validate_python(raw)

    @classmethod
    def user_fields(cls) -> dict[str, FieldInfo]:
        """What may be written in this table: its fields, and the short forms where a class has some."""
        return dict(cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _read_words(cls, raw: Any) -> Any:
        """`none` as no value; true and false are no numbers."""
        if not isinstance(raw, dict):
            return raw
        takes = {name: get_args(field.annotation) or (field.annotation,) for name, field in cls.model_fields.items()}
        for key, value in raw.items():
            if isinstance(value, bool) and key in takes and bool not in takes[key] and {int, float} & set(takes[key]):
                raise broken_rule(f"{key}={str(value).lower()}: needs a number")
        none = {key for key, value in raw.items() if isinstance(value, str) and value == "none"}
        return {key: None if key in none and type(None) in takes.get(key, ()) else v for key, v in raw.items()}


class Kind(Part):
    """A part that comes in several kinds, told apart by the name in `kind`."""

    kind: str


P = TypeVar("P", bound=Kind)


def broken_rule(text: str) -> PydanticCustomError:
    """What a validator raises: `text` begins with the path of a field of the config at hand, and says a way out."""
    return PydanticCustomError("rule", "{text}", {"text": text})


def bad_value(text: str) -> PydanticCustomError:
    """What a field's validator raises: `text` continues the field's path, as in "='ropee' does not exist"."""
    return PydanticCustomError("value", "{text}", {"text": text})


class ByKind:
    """A validator that reads 'rope', {'kind': 'rope', 'theta': 1e6} or a finished config by the row of `table`.

    `default` is the kind of a table without one.
    """

    def __init__(self, table: Choices[type[P]], default: str | None = None):
        self.table, self.default = table, default

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None  # whether it may be left out is the field's own question
        known = ", ".join(self.table.names())
        if isinstance(value, Kind):
            if value.kind in self.table and type(value) is self.table.get(value.kind):
                return value
            value = value.model_dump()  # NormConfig(kind="rms") means RMSNormConfig
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise bad_value(f"={value!r}: needs a kind ({known}) or a table")
        kind = value.get("kind", self.default)
        if kind is None:
            raise bad_value(
                f" needs a kind: {known}" if known else " has no built-in kinds: name a file in model.parts"
            )
        if not isinstance(kind, str) or kind not in self.table:
            raise PydanticCustomError(
                "unknown_kind", "{text}", {"text": f"={kind!r} does not exist. {self._help(kind)}"}
            )
        return self.table.get(kind).parse({**value, "kind": kind})

    def _help(self, kind: Any) -> str:
        if not isinstance(kind, str):
            return f"Known: {', '.join(self.table.names())}."
        return did_you_mean(kind, self.table.names()) if self.table.names() else "There are no built-in kinds."


def by_kind(table: Choices[type[P]], default: str | None = None) -> ByKind:
    """A validator for a field that comes in the kinds of `table`."""
    return ByKind(table, default)


def parse_all(cls: type[Part], raw: Any, names: Iterable[str]) -> tuple[Part, ...]:
    """Each item of `raw` as a `cls`; findings are located by name, or by '*' when every item has the same one."""
    done, found = [], []
    names = list(names)
    for name, item in zip(names, raw, strict=True):
        try:
            done.append(cls.parse(item))
        except ValidationError as error:
            found.append([(name, finding) for finding in error.errors()])
    if not found:
        return tuple(done)
    same = [{(f["type"], f["loc"]) for _, f in findings} for findings in found]
    everywhere = set.intersection(*same) if len(found) == len(names) else set()
    lines: dict[tuple[Any, ...], Any] = {}
    for name, finding in (pair for findings in found for pair in findings):
        place = "*" if (finding["type"], finding["loc"]) in everywhere else name
        lines.setdefault((place, *finding["loc"]), finding)
    raise ValidationError.from_exception_data(
        cls.__name__,
        [
            InitErrorDetails(
                type=PydanticCustomError(f["type"], "{text}", {"text": f["msg"]}),
                loc=loc,
                input=f["input"],
            )
            for loc, f in lines.items()
        ],
    )


def as_tuple(value: Any) -> Any:
    """One name where a list is expected: 'a' -> ('a',)."""
    return (value,) if isinstance(value, str) else value
