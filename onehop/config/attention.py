"""Attention that can be asked for."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from onehop.base.choices import Choices
from onehop.config.norm import Norm, RMSNormConfig
from onehop.config.part import Kind, Part, by_kind
from onehop.config.position import Position, RopeConfig


class QKNormConfig(Part):
    """A norm on q and k before their product. Henry et al. 2020, arXiv:2010.04245; 2302.05442.

    With `own_weights` as StableLM 2 (arXiv:2402.17834) and Command R+ (Cohere 2024) have it.
    """

    norm: Norm
    span: Literal["head", "all"] = Field(
        "head", description="normalise each head by itself, or all heads as one vector"
    )
    own_weights: bool = Field(False, description="each head has weights of its own, instead of sharing one set")


class ScoreConfig(Kind):
    """The base of score rules of your own (none are built in): they change the scores before the softmax."""

    kind: str


SCORES: Choices[type[ScoreConfig]] = Choices("attention.score", {})


class AttentionConfig(Kind):
    """Attention whose n_heads query heads share n_kv_heads key/value heads. Ainslie et al. 2023, arXiv:2305.13245.

    n_kv_heads = n_heads is multi-head attention, 1 is multi-query attention, anything between is grouped-query.
    """

    kind: str = "grouped"
    n_heads: int = Field(ge=1, description="query heads")
    n_kv_heads: int = Field(ge=1, description="key/value heads; must divide n_heads (left out: n_heads)")
    d_head: int = Field(ge=1, description="width of a head (left out: d_model / n_heads)")
    bias: bool = Field(False, description="biases on the q, k and v projections")
    bias_out: bool = Field(False, description="bias on the output projection")
    clip: float | None = Field(
        None, gt=0, description="q, k and v are cut off at ± clip as they are projected (MPT, MosaicML 2023; OLMo)"
    )
    qk_norm: QKNormConfig | None = Field(None, description="norm on q and k")
    clip_after_norm: bool = Field(
        False, description="q and k are cut off after their norm instead of before it (OLMoE, arXiv:2409.02060)"
    )
    sees: Literal["causal", "prefix", "all"] = Field(
        "causal", description="who sees whom: the past; the past and a prefix in both directions; everything"
    )
    window: int | None = Field(
        None, ge=1, description="keys at a distance below it are seen (with sees=all, on both sides); none: all"
    )
    softcap: float | None = Field(None, gt=0, description="scores become cap · tanh(score / cap), before the mask")
    scale: float | None = Field(None, gt=0, description="multiplies q·k; none: 1/sqrt(d_head)")
    sinks: bool = Field(False, description="a learned score per head that takes weight and gives nothing back")
    position: Position = Field(default_factory=RopeConfig, description="position scheme: rope, alibi, t5 or none")
    score: Annotated[SerializeAsAny[ScoreConfig] | None, BeforeValidator(by_kind(SCORES))] = Field(
        None, description="a score rule of your own (model.parts)"
    )

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.n_heads // self.n_kv_heads


class LatentConfig(AttentionConfig):
    """Multi-head latent attention. DeepSeek-V2, arXiv:2405.04434, section 2.1.

    Keys and values are made from one narrow latent per token; the cache keeps this latent and the turning dims of the
    key, which all heads share. `position.width` dims of each head turn and the others do not. `bias` stands on the
    projections down to the latents.
    """

    kind: str = "latent"
    d_latent: int = Field(ge=1, description="width of the latent from which keys and values are made")
    d_latent_q: int | None = Field(
        None, ge=1, description="width of a latent from which queries are made; none: from the input"
    )
    d_value: int = Field(ge=1, description="width of a head's values")
    norm: Norm = Field(default_factory=RMSNormConfig, description="norm on the latents")


ATTENTIONS: Choices[type[AttentionConfig]] = Choices("attention", {"grouped": AttentionConfig, "latent": LatentConfig})
Attention = Annotated[SerializeAsAny[AttentionConfig], BeforeValidator(by_kind(ATTENTIONS, default="grouped"))]
