"""What is learned from the text: which tokens a model is asked for, and what it may read before it answers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from onehop.base.choices import Choices
from onehop.config.part import Kind, broken_rule, by_kind
from onehop.config.rules import each_block

if TYPE_CHECKING:
    from onehop.config.data import DataConfig
    from onehop.config.model import BlockConfig, ModelConfig


class TaskConfig(Kind):
    """A kind of task; `reads` says by which architectures it can be learned."""

    @property
    def encoder(self) -> bool:
        """Whether it takes an encoder-decoder."""
        return isinstance(self, PairsConfig | SpansConfig)

    @property
    def both_ways(self) -> bool:
        """Whether it takes a model in which each token sees those behind it."""
        return isinstance(self, MaskedConfig)


class NextConfig(TaskConfig):
    """The next token of plain text."""

    kind: Literal["next"] = "next"


class ChatConfig(TaskConfig):
    """The assistant's words in conversations: JSON lines {"messages": [{"role": …, "content": …}, …]}."""

    kind: Literal["chat"] = "chat"
    template: str | None = Field(
        None, min_length=1, description="file with a chat template (Jinja); none: the tokenizer's own"
    )


class PairsConfig(TaskConfig):
    """The target that belongs to a source: JSON lines with both, or lines of two columns (.tsv)."""

    kind: Literal["pairs"] = "pairs"
    source: str = Field("source", min_length=1, description="field of a JSON line that holds the source")
    target: str = Field("target", min_length=1, description="field of a JSON line that holds the target")


class SpansConfig(TaskConfig):
    """What stood where spans were cut out of plain text. Raffel et al. 2019 (T5), arXiv:1910.10683, section 3.1.4."""

    kind: Literal["spans"] = "spans"
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are cut out")
    mean_span: float = Field(3.0, ge=1, description="tokens of a span that is cut out, on average")


class MaskedConfig(TaskConfig):
    """Tokens of plain text that were covered. Devlin et al. 2018 (BERT), arXiv:1810.04805, section 3.1."""

    kind: Literal["masked"] = "masked"
    rate: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are asked for")
    as_mask: float = Field(0.8, ge=0, le=1, description="share of these that is shown as the mask token")
    as_random: float = Field(0.1, ge=0, le=1, description="share of these that is shown as any token; the rest stays")

    @model_validator(mode="after")
    def _fits(self) -> "MaskedConfig":
        if self.as_mask + self.as_random > 1:
            raise broken_rule(
                f"as_mask={self.as_mask:g} and as_random={self.as_random:g} are more than all tokens that are asked "
                "for: their sum may be 1 at most. Use 0.8 and 0.1."
            )
        return self


TASKS: Choices[type[TaskConfig]] = Choices(
    "task",
    {
        "next": NextConfig,
        "chat": ChatConfig,
        "pairs": PairsConfig,
        "spans": SpansConfig,
        "masked": MaskedConfig,
    },
)
Task = Annotated[SerializeAsAny[TaskConfig], BeforeValidator(by_kind(TASKS))]


# What the keys of `data` say that a task has no use for: it reads one text, and makes its rows itself.
IGNORED = {
    "spans": ("packing", "documents", "mixture", "stream"),
    "chat": ("packing", "documents", "mixture", "stream", "deduplicate", "separator", "text_field"),
    "pairs": ("packing", "documents", "mixture", "stream", "deduplicate", "separator", "text_field"),
}


def misfits(task: TaskConfig, model: "ModelConfig", data: "DataConfig") -> Iterator[str]:
    """A line for each reason why this model cannot learn this task, or has no use for a key of `data`."""
    kind, has_encoder = task.kind, model.encoder is not None
    if task.encoder and not has_encoder:
        yield f"task={kind} is for encoder-decoders, and model.encoder is left out. Add one, or use task=next."
    if has_encoder and not task.encoder:
        yield (
            f"task={kind} is for models without an encoder, and this one has model.encoder. Use task=pairs (sources "
            "and targets) or task=spans (plain text)."
        )
    if task.both_ways and not model.both_ways:
        yield (
            f"task={kind} is for models that read both ways, and none of this one's layers does. Set "
            "model.attention.sees=all, or use task=next."
        )
    if not task.both_ways:
        yield from each_block(model, "model.", (_hides_the_next,))
    for key in IGNORED.get(kind, ()):
        if getattr(data, key) != type(data).model_fields[key].default:
            yield f"data.{key} has no effect with task={kind}, which makes its rows itself. Leave it out."
    if kind != "next" and data.tokenizer == "characters":
        yield (
            f"data.tokenizer=characters has no begin, end and mask tokens, which task={kind} needs. Use "
            "data.tokenizer=bpe (data.vocab_size=258: one token for each byte)."
        )


def _hides_the_next(block: "BlockConfig", path: str) -> Iterator[str]:
    if block.attention.sees == "all":
        yield (
            f"{path}attention.sees=all shows every token the next one, which training asks for. Use causal or prefix, "
            "or task=masked."
        )
