"""What a recipe says about its text."""

from typing import Literal

from pydantic import Field, model_validator

from onehop.config.effect import Listens, without_effect
from onehop.config.model import Names
from onehop.config.part import Part, broken_rule


class DataConfig(Part):
    """Which text, how it becomes tokens, and how tokens become rows."""

    corpus: str | None = Field(None, description="a built-in corpus: fables or python-stdlib")
    files: Names = Field((), description="files, folders or globs with text (.txt, .md, source code, .jsonl …)")
    n_documents: int | None = Field(
        None, ge=1, description="documents to take; none: all (an endless corpus needs a number)"
    )
    separator: str | None = Field(
        None, description="splits a plain file into documents; none: one file is one document"
    )
    jsonl_field: str = Field("text", description="the field of each JSON line that holds the text")
    tokenizer: str = Field("bpe", description="bpe (trained on the text), characters, or the path of a tokenizer.json")
    vocab_size: int = Field(1024, ge=258, description="size of a trained bpe")
    validation: float = Field(0.05, gt=0, lt=1, description="share of the documents that are kept for validation")
    packing: Literal["whole", "stream"] = Field(
        "whole", description="rows of whole documents (fewest cuts), or one stream cut into rows"
    )
    seed: int = Field(0, ge=0, description="of the built-in corpora, the split and the tokenizer")

    @model_validator(mode="after")
    def _fits(self) -> "DataConfig":
        if self.corpus is not None and self.files:
            raise broken_rule(
                f"corpus={self.corpus} and data.files={','.join(self.files)} are both given. Leave one out."
            )
        for text in without_effect(self, rows=LISTENS):
            raise broken_rule(text)
        return self


LISTENS = [
    Listens(DataConfig, "vocab_size", lambda data: data.tokenizer == "bpe", "tokenizer=bpe"),
    Listens(DataConfig, "separator", lambda data: bool(data.files), "files"),
    Listens(DataConfig, "jsonl_field", lambda data: bool(data.files), "files"),
]
