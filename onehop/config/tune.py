"""Going on from a model that is trained already: all of it, a part of it, or thin adapters beside it."""

from collections.abc import Iterator

from pydantic import Field, model_validator

from onehop.config.model import ModelConfig, Names
from onehop.config.origins import leaves
from onehop.config.part import Part, broken_rule


class LoRAConfig(Part):
    """Low-rank adapters; the model itself stays as it is. Hu et al. 2021, arXiv:2106.09685."""

    rank: int = Field(8, ge=1, description="width of an adapter")
    alpha: float = Field(16.0, gt=0, description="an adapter's output is multiplied by alpha / rank")
    targets: Names = Field(
        ("*layers.*",),
        min_length=1,
        description="the linear maps that get one, by name, with * and ?: layers.*.attention.w[qv]",
    )


class TuneConfig(Part):
    """What a run begins with, and what of it learns."""

    init: str | None = Field(
        None, min_length=1, description="a model to go on from: its architecture, tokenizer and weights; none: fresh"
    )
    freeze: Names = Field((), description="parameters that stay as they are, by name, with * and ?: embed.*")
    lora: LoRAConfig | None = Field(
        None, description="adapters that learn in the model's place; none: it learns itself"
    )

    @model_validator(mode="after")
    def _fits(self) -> "TuneConfig":
        if self.lora is not None and self.init is None:
            raise broken_rule("lora adapts a model that is trained: it needs tune.init. Set tune.init=MODEL.")
        if self.lora is not None and self.freeze:
            raise broken_rule(
                f"freeze={','.join(self.freeze)} has no effect with tune.lora: there all but the adapters is frozen. "
                "Leave one out."
            )
        return self


# What training may choose anew in a model that exists: it changes nothing but the training itself.
FREE = ("dropout.", "parts")


def contradictions(asked: ModelConfig, found: ModelConfig, init: str) -> Iterator[str]:
    """A line for each key of the model that a recipe asks for and the checkpoint has otherwise."""
    has = leaves(found)
    for key, value in leaves(asked).items():
        if not key.startswith(FREE) and (key not in has or has[key] != value):
            other = f"which has {_shown(has[key])}" if key in has else "which has no such key"
            yield f"model.{key}={_shown(value)} contradicts tune.init={init}, {other}. Leave model.{key} out."


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)
