"""Feed-forward layers that can be asked for."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from onehop.base.choices import Choices
from onehop.config.part import Kind, by_kind

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "none"]


class FFNConfig(Kind):
    """The base of all feed-forward layers."""

    kind: str


class PlainConfig(FFNConfig):
    """W2 · act(W1 · x). Vaswani et al. 2017, arXiv:1706.03762, equation 2."""

    kind: Literal["plain"] = "plain"
    d_ff: int = Field(ge=1, description="inner width")
    activation: Activation = Field("gelu", description="non-linearity; gelu_tanh is the tanh approximation of gelu")
    bias: bool = Field(False, description="biases on both projections")


class GateConfig(FFNConfig):
    """How a gate opens: act(gate) ⊙ up, or act(min(gate, clamp)) ⊙ (up within ±clamp + up_offset).

    The gain: Ramachandran et al. 2017, arXiv:1710.05941, equation 1; clamp and offset: gpt-oss, arXiv:2508.10925,
    section 2.2, which says no more than that they are there; its release is the definition.
    """

    swish_gain: float = Field(1.0, gt=0, description="silu becomes x · sigmoid(gain · x); with 1.702 it is near gelu")
    clamp: float | None = Field(
        None, gt=0, description="the gate is cut off above this value, and what it lets through beyond ± this value"
    )
    up_offset: float = Field(0.0, description="added to what the gate lets through")


class GatedConfig(GateConfig):
    """W2 · (act(W1 · x) ⊙ W3 · x); SwiGLU with silu, GeGLU with gelu. Shazeer 2020, arXiv:2002.05202, equation 6."""

    kind: Literal["gated"] = "gated"
    d_ff: int = Field(ge=1, description="inner width")
    activation: Activation = Field("silu", description="non-linearity of the gate")
    bias: bool = Field(False, description="biases on all three projections")


class MoEConfig(GateConfig):
    """n_experts feed-forward layers of which each token visits n_active. Shazeer et al. 2017, arXiv:1701.06538."""

    kind: Literal["moe"] = "moe"
    d_ff: int = Field(ge=1, description="inner width of one expert")
    n_experts: int = Field(ge=1, description="routed experts")
    n_active: int = Field(ge=1, description="experts per token")
    expert: Literal["gated", "plain"] = Field("gated", description="form of each expert")
    activation: Activation = Field("silu", description="non-linearity inside the experts")
    bias: bool = Field(False, description="biases inside the experts")
    gate: Literal["softmax", "sigmoid"] = Field("softmax", description="how router logits become weights")
    router_bias: bool = Field(False, description="bias on the router's logits")
    n_groups: int = Field(1, ge=1, description="groups that the experts stand in, as many in each")
    n_active_groups: int = Field(1, ge=1, description="groups that a token may choose its experts from")
    group_score: Literal["best", "best two"] = Field(
        "best", description="what a group is chosen by: its best expert's score, or its best two experts' sum"
    )
    renormalise: bool = Field(True, description="divide the chosen weights by their sum")
    routed_scale: float = Field(1.0, gt=0, description="multiplies the routed experts' sum")
    d_ff_shared: int | None = Field(
        None, ge=1, description="inner width of the expert that every token visits; none: no such"
    )
    shared_gate: bool = Field(
        False, description="multiply the shared expert's output by sigmoid(w·x), as Qwen1.5-MoE does"
    )
    balance: Literal["loss", "bias", "none"] = Field(
        "loss", description="Switch's auxiliary loss; DeepSeek-V3's bias on the choice, moved after each step; nothing"
    )
    balance_weight: float = Field(0.01, ge=0, description="weight of the auxiliary loss (balance = loss)")
    balance_rate: float = Field(0.001, ge=0, description="step of the bias (balance = bias)")
    z_weight: float = Field(0.0, ge=0, description="weight of the router z-loss")


FFNS: Choices[type[FFNConfig]] = Choices("ffn", {"plain": PlainConfig, "gated": GatedConfig, "moe": MoEConfig})
FFN = Annotated[SerializeAsAny[FFNConfig], BeforeValidator(by_kind(FFNS))]
