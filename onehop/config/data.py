"""What a recipe says about its text."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from onehop.config.effect import Listens, without_effect
from onehop.config.model import Names
from onehop.config.part import Part, broken_rule, parse_all


class TextConfig(Part):
    """Where documents come from."""

    corpus: str | None = Field(None, description="a built-in corpus: fables, python-stdlib or dates")
    files: Names = Field(
        (),
        description="files, folders or globs: plain text, .jsonl, both also as .gz or .zst, .parquet, folders that "
        "`datasets` saved",
    )
    n_documents: int | None = Field(
        None, ge=1, description="documents to take; none: all (an endless corpus needs a number, unless streamed)"
    )
    separator: str | None = Field(
        None, description="splits a plain file into documents; none: one file is one document"
    )
    text_field: str = Field("text", description="the field of each JSON line, or the column of a table, with the text")

    @model_validator(mode="after")
    def _one_place(self) -> "TextConfig":
        if self.corpus is not None and self.files:
            raise broken_rule(f"corpus={self.corpus} and files={','.join(self.files)} are both given. Leave one out.")
        for text in without_effect(self, rows=LISTENS):
            raise broken_rule(text)
        return self


class MixtureSource(TextConfig):
    """One source of a mixture."""

    name: str = Field(pattern=r"^\w[\w-]*$", description="what reports call it")
    weight: float = Field(1.0, gt=0, le=1e9, description="its share of the tokens, against the other sources' weights")

    @model_validator(mode="after")
    def _has_text(self) -> "MixtureSource":
        if self.corpus is None and not self.files:
            raise broken_rule("files and corpus are left out: no text. Set one of them.")
        return self


def _by_name(raw: Any) -> Any:
    """A table of tables by name, or a list of tables with names -> one config for each."""
    if isinstance(raw, Mapping):
        raw = [{"name": name, **table} if isinstance(table, Mapping) else table for name, table in raw.items()]
    if not isinstance(raw, list | tuple):
        return raw
    names = [str(_name_of(item, number)) for number, item in enumerate(raw)]
    return parse_all(MixtureSource, raw, names)


def _name_of(item: Any, number: int) -> Any:
    return item.get("name", number) if isinstance(item, Mapping) else getattr(item, "name", number)


class DataConfig(TextConfig):
    """Which text, how it becomes tokens, and how tokens become rows."""

    mixture: Annotated[tuple[MixtureSource, ...], BeforeValidator(_by_name)] = Field(
        (), description="several sources by name, instead of files or corpus: data.mixture.NAME.files=…"
    )
    deduplicate: bool = Field(False, description="drop documents that are equal to an earlier one, in all sources")
    stream: bool = Field(
        False, description="tokenise while training and store no shards: for text that fits on no disk, or has no end"
    )
    tokenizer: str = Field("bpe", description="bpe (trained on the text), characters, or the path of a tokenizer.json")
    vocab_size: int = Field(1024, ge=258, description="size of a trained bpe")
    validation: float = Field(
        0.05, gt=0, lt=1, description="share of the documents kept for validation; streamed: of the first ones"
    )
    packing: Literal["whole", "stream"] = Field(
        "whole", description="rows of whole documents by best fit (fewest cuts), or one stream cut into rows"
    )
    documents: Literal["separate", "joined"] = Field(
        "separate", description="separate: the documents of a row do not see each other; joined: they do"
    )
    seed: int = Field(0, ge=0, description="of the built-in corpora, the split, the mixture and the tokenizer")

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        names = [source.name for source in self.mixture]
        given = [key for key in TextConfig.model_fields if key in _changed(self)]
        if self.mixture and given:
            inside = f"data.mixture.{names[0]}.{given[0]}"
            raise broken_rule(f"mixture and data.{given[0]} are both given. Put it into one source: {inside}.")
        if len(names) == 1:
            raise broken_rule(f"mixture has one source, {names[0]}. Add another, or write its keys below data itself.")
        if len(set(names)) < len(names):
            raise broken_rule(f"mixture has two sources of one name ({', '.join(names)}). Give each its own.")
        if self.stream and self.deduplicate:
            raise broken_rule(
                "deduplicate remembers every document, and data.stream=true goes through the text once, without end. "
                "Leave one out."
            )
        if self.stream and self.tokenizer == "characters":
            raise broken_rule(
                "tokenizer=characters needs the whole text before the first step, and data.stream=true reads it while "
                "training. Use tokenizer=bpe, or leave data.stream out."
            )
        return self


def _changed(config: Part) -> list[str]:
    """Fields that have another value than their default."""
    fields = type(config).model_fields.items()
    return [name for name, field in fields if getattr(config, name) != field.default]


LISTENS = [
    Listens(DataConfig, "vocab_size", lambda data: data.tokenizer == "bpe", "tokenizer=bpe"),
    Listens(TextConfig, "separator", lambda data: bool(data.files), "files"),
    Listens(TextConfig, "text_field", lambda data: bool(data.files), "files"),
]
