"""Where a token stands: the position schemes inside attention (absolute ones belong to the embedding)."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from onehop.base.choices import Choices
from onehop.config.part import Kind, by_kind


class ScalingConfig(Kind):
    """The base of the ways to stretch RoPE over longer texts than it was trained on."""

    kind: str


class LinearScaling(ScalingConfig):
    """Position interpolation: every angle divided by `factor`. Chen et al. 2023, arXiv:2306.15595, equation 4."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(gt=0, description="how many times longer")


class NTKScaling(ScalingConfig):
    """NTK-aware: the base raised by factor^(d/(d-2)), so that only the slowest pair is fully interpolated.

    Published by bloc97 (2023); written down in YaRN, arXiv:2309.00071, section 3.1.
    """

    kind: Literal["ntk"] = "ntk"
    factor: float = Field(gt=0, description="how many times longer")


class DynamicScaling(ScalingConfig):
    """NTK-aware scaling that grows with the text: none up to `original_max_len`. arXiv:2309.00071, section 3.3.

    Keys keep the angles of the text's length at which they were read, as in the published implementation: beyond that
    length a text that grows token by token is not what one pass over it gives.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(gt=0, description="scale of the growth beyond the original length")
    original_max_len: int = Field(ge=1, description="tokens up to which nothing changes")


class YarnScaling(ScalingConfig):
    """YaRN: interpolate slow pairs, keep fast ones, ramp between; warm the scores. arXiv:2309.00071, 3.2-3.4."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(gt=0, description="how many times longer")
    original_max_len: int = Field(ge=1, description="tokens that the model was trained on before stretching")
    beta_fast: float = Field(32.0, gt=0, description="turns within the original length above which a pair is kept")
    beta_slow: float = Field(
        1.0, gt=0, description="turns within the original length below which a pair is interpolated"
    )
    attention_factor: float | None = Field(None, description="multiplies cos and sin; none: 0.1 ln(factor) + 1")
    mscale: float | None = Field(None, description="DeepSeek's numerator: 0.1 · mscale · ln(factor) + 1")
    mscale_all_dim: float | None = Field(None, description="DeepSeek's denominator, likewise")
    truncate: bool = Field(True, description="round the ends of the ramp to whole pairs")


class Llama3Scaling(ScalingConfig):
    """Interpolate long wavelengths, keep short ones, blend between. The Llama 3.1 release (Meta 2024)."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(gt=0, description="how many times longer")
    low_freq_factor: float = Field(
        1.0, gt=0, description="original length / wavelength below which a pair is interpolated"
    )
    high_freq_factor: float = Field(4.0, gt=0, description="original length / wavelength above which a pair is kept")
    original_max_len: int = Field(ge=1, description="tokens that the model was trained on before stretching")


class LongRopeScaling(ScalingConfig):
    """LongRoPE: a searched factor for each pair, one list for short and one for long texts. arXiv:2402.13753.

    Keys that were read while the text was short keep the short list's angles: beyond `original_max_len` a text that
    grows token by token is not what one pass over it gives.
    """

    kind: Literal["longrope"] = "longrope"
    short_factor: tuple[float, ...] = Field(description="divides each pair's frequency up to the original length")
    long_factor: tuple[float, ...] = Field(description="divides each pair's frequency beyond it")
    original_max_len: int = Field(ge=2, description="tokens that the model was trained on before stretching")
    factor: float | None = Field(None, gt=0, description="how many times longer; sets the attention factor")
    attention_factor: float | None = Field(
        None, description="multiplies cos and sin; none: sqrt(1 + ln(factor) / ln(original_max_len))"
    )


SCALINGS: Choices[type[ScalingConfig]] = Choices(
    "rope scaling",
    {
        "linear": LinearScaling,
        "ntk": NTKScaling,
        "dynamic": DynamicScaling,
        "yarn": YarnScaling,
        "llama3": Llama3Scaling,
        "longrope": LongRopeScaling,
    },
)


class PositionConfig(Kind):
    """The base of all position schemes; `none` leaves attention without an order of its own."""

    kind: str = "none"


class RopeConfig(PositionConfig):
    """Rotary positions on q and k. Su et al. 2021, arXiv:2104.09864, equation 34; half-split pairs (j, j + width/2)."""

    kind: Literal["rope"] = "rope"
    theta: float = Field(10000.0, gt=1, description="base of the wavelengths")
    width: int | None = Field(None, ge=2, description="leading dims of each head that turn (partial rotary); none: all")
    scaling: Annotated[SerializeAsAny[ScalingConfig] | None, BeforeValidator(by_kind(SCALINGS))] = Field(
        None, description="how to stretch beyond the trained length"
    )


class AlibiConfig(PositionConfig):
    """Minus slope · distance on every score. Press et al. 2021, arXiv:2108.12409, section 3."""

    kind: Literal["alibi"] = "alibi"
    max_exponent: float = Field(8.0, gt=0, description="the flattest slope of n heads (n a power of two) is 2^-this")
    scaled: bool = Field(
        False, description="add the bias before the scores are scaled, as Falcon's release does: times attention.scale"
    )
    rounded: bool = Field(
        False, description="slopes and slope · position in bfloat16, as in Falcon's release; then not of distance alone"
    )


class T5Config(PositionConfig):
    """A learned bias for each bucket of distance and head, one table per stack. Raffel et al. 2019, 1910.10683."""

    kind: Literal["t5"] = "t5"
    n_buckets: int = Field(32, ge=2, description="rows of the table")
    max_distance: int = Field(128, ge=2, description="distance (tokens) from which all share the last bucket")


POSITIONS: Choices[type[PositionConfig]] = Choices(
    "attention.position", {"rope": RopeConfig, "alibi": AlibiConfig, "t5": T5Config, "none": PositionConfig}
)
Position = Annotated[SerializeAsAny[PositionConfig], BeforeValidator(by_kind(POSITIONS, default="rope"))]
