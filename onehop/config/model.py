"""What a model is: a stack of blocks (and, for encoder-decoders, a second one)."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from onehop.base.errors import ConfigError
from onehop.config.attention import Attention
from onehop.config.expand import expand_blocks
from onehop.config.ffn import FFN, Activation
from onehop.config.norm import LayerNormConfig, Norm, NormConfig, RMSNormConfig
from onehop.config.part import Part, as_tuple, broken_rule, parse_all
from onehop.config.raw import COMMON, names_in
from onehop.config.rules import faults

Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
Pattern = Annotated[tuple[str, ...], BeforeValidator(lambda value: names_in(value) or value)]


class BlockConfig(Part):
    """One residual block: h = x + attention(norm(x)); y = h + ffn(norm(h)), and its published rearrangements."""

    name: str = Field(description="what `pattern` calls it")
    attention: Attention
    cross: Attention | None = Field(None, description="attention over the encoder's output, between attention and ffn")
    ffn: FFN
    norm: Norm = Field(default_factory=RMSNormConfig, description="the norm used throughout the block")
    norm_in: bool = Field(True, description="normalise the input of each sublayer (pre-norm)")
    norm_out: Literal["none", "inside", "outside"] = Field(
        "none",
        description="normalise each sublayer's output before the residual sum (inside) or the sum itself (outside)",
    )
    parallel: Literal["no", "one norm", "two norms"] = Field(
        "no", description="attention and ffn side by side, reading one shared norm or one each"
    )
    residual_scale: float = Field(1.0, gt=0, description="multiplies each sublayer's output")


class EmbedConfig(Part):
    """Token embedding and the absolute positions that are added to it.

    With a `width` the matrix of tokens is factorised. Lan et al. 2019 (ALBERT), arXiv:1909.11942, section 3.1.
    `segments`: Devlin et al. 2018 (BERT), arXiv:1810.04805, section 3.
    """

    width: int | None = Field(
        None,
        ge=1,
        description="width of a token's row: one map takes it to d_model, one back before the head; none: d_model",
    )
    position: Literal["none", "learned", "sinusoidal"] = Field("none", description="absolute positions, added once")
    position_offset: int = Field(
        0, ge=0, description="added to every position; learned: rows of the table that no position takes (OPT: 2)"
    )
    waves: Literal["interleaved", "halves", "fairseq"] = Field(
        "interleaved",
        description="sinusoidal: sin and cos in turn; all sines first; all sines first, up to 10000·2π exactly",
    )
    segments: int | None = Field(
        None, ge=1, description="rows of a table of segments, added too: which of several texts a token belongs to"
    )
    scale: float = Field(1.0, gt=0, description="multiplies the token embedding (sqrt(d_model) in the original)")
    norm: Norm = Field(default_factory=NormConfig, description="norm on the sum")


class TransformConfig(Part):
    """One more hidden layer before the logits, norm(act(W · x + b)).

    Devlin et al. 2018, arXiv:1810.04805, in its release.
    """

    activation: Activation = Field("gelu", description="non-linearity")
    norm: Norm = Field(default_factory=LayerNormConfig, description="norm on what comes out")


class HeadConfig(Part):
    """From hidden states to logits."""

    transform: TransformConfig | None = Field(
        None, description="one more hidden layer before the logits; none: no such"
    )
    tied: bool = Field(True, description="use the embedding matrix as head")
    bias: bool = Field(False, description="add a bias to the logits")
    scale: float = Field(1.0, gt=0, description="multiplies the logits")
    softcap: float | None = Field(None, gt=0, description="logits become cap · tanh(logit / cap)")


class DropoutConfig(Part):
    """Dropout rates, in training only. Srivastava et al. 2014; places as in arXiv:1706.03762, section 5.4."""

    embed: float = Field(0.0, ge=0, lt=1, description="on the embedding")
    attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    residual: float = Field(0.0, ge=0, lt=1, description="on each sublayer's output before the residual sum")

    @property
    def any(self) -> bool:
        return bool(self.embed or self.attention or self.residual)


def _parse_blocks(raw: Any) -> Any:
    """Blocks one by one, so that a finding is located by a block's name and not by its number."""
    if not isinstance(raw, list | tuple):
        return raw
    return parse_all(BlockConfig, raw, [_name_of(block) for block in raw])


def _name_of(block: Any) -> str:
    return str(block.get("name", "?") if isinstance(block, dict) else getattr(block, "name", "?"))


class StackConfig(Part):
    """Blocks and the order in which they follow each other.

    Besides its fields it takes every field of BlockConfig (`attention=…, ffn=…, norm=…`): set in all its blocks.
    """

    n_layers: int = Field(ge=1, description="blocks in the stack")
    blocks: Annotated[tuple[BlockConfig, ...], BeforeValidator(_parse_blocks)] = Field(
        description="the different blocks, by name"
    )
    pattern: Pattern = Field(description="block names, cycled over the layers (left out: all blocks in turn)")
    final_norm: Norm = Field(default_factory=RMSNormConfig, description="norm after the last block")

    @classmethod
    def user_fields(cls) -> dict[str, FieldInfo]:
        return {**cls.model_fields, **{name: BlockConfig.model_fields[name] for name in COMMON}}

    def layers(self) -> Iterator[BlockConfig]:
        """The block of each layer, first to last."""
        named = {block.name: block for block in self.blocks}
        for i in range(self.n_layers):
            yield named[self.pattern[i % len(self.pattern)]]


class EncoderConfig(StackConfig):
    """The encoder of an encoder-decoder: its own stack; it shares d_model, vocabulary and dropout with the decoder."""

    embed: EmbedConfig = Field(default_factory=EmbedConfig, description="its embedding")
    share_embedding: bool = Field(True, description="use the decoder's token matrix")


class ModelConfig(StackConfig):
    """An architecture, completely: equal configs build equal models.

    `preset=…` starts from a named shape, over which the other keys are laid.
    """

    vocab_size: int | None = Field(
        None, ge=1, description="rows of the embedding; left out in a recipe: the tokenizer's"
    )
    d_model: int = Field(ge=1, description="width of the residual stream")
    max_len: int = Field(ge=1, description="longest text, in tokens")
    embed: EmbedConfig = Field(default_factory=EmbedConfig, description="token embedding and absolute positions")
    head: HeadConfig = Field(default_factory=HeadConfig, description="from hidden states to logits")
    encoder: EncoderConfig | None = Field(None, description="the encoder of an encoder-decoder")
    dropout: DropoutConfig = Field(default_factory=DropoutConfig, description="dropout rates")
    init_std: float = Field(0.02, gt=0, description="standard deviation of fresh weights, before depth scaling")
    parts: Names = Field((), description="files with parts of your own, for example my_parts.py")

    @classmethod
    def user_fields(cls) -> dict[str, FieldInfo]:
        preset = FieldInfo(annotation=str | None, default=None, description="a named shape to start from")
        return {"preset": preset, **super().user_fields()}

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, raw: Any) -> Any:
        return expand_blocks(raw) if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _check(self) -> Self:
        for text in faults(self):
            raise broken_rule(text)
        return self

    @property
    def both_ways(self) -> bool:
        """Whether a token sees those behind it: an answer at its place is about itself then, not about the next."""
        return any(block.attention.sees == "all" for block in self.blocks)

    def with_vocab(self, vocab_size: int) -> "ModelConfig":
        """The same architecture for a tokenizer of `vocab_size` ids."""
        return ModelConfig.model_validate({**dict(self), "vocab_size": vocab_size})

    def need_vocab(self) -> int:
        """vocab_size, which only a recipe may leave out. Raises ConfigError."""
        if self.vocab_size is None:
            raise ConfigError("vocab_size is left out: only a recipe may leave it to the tokenizer. Set vocab_size=…")
        return self.vocab_size
