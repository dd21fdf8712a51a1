"""Norms that can be asked for."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from onehop.base.choices import Choices
from onehop.config.part import Kind, by_kind


class NormConfig(Kind):
    """The base of all norms; `none` passes its input on."""

    kind: str = "none"


class RMSNormConfig(NormConfig):
    """x / rms(x) · (offset + weight). Zhang and Sennrich 2019, arXiv:1910.07467, equation 4."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(1e-6, ge=0, description="added to the mean square, inside the root")
    offset: Literal[0, 1] = Field(0, description="added to the weight in float32; 1 where weights are stored around 0")
    affine: bool = Field(True, description="whether the norm has a learned weight")
    statistics: Literal["wide", "float32"] = Field(
        "wide",
        description="dtype of the mean square: the numbers' own, float32 at least; or float32 for float64 too, as T5's",
    )


class LayerNormConfig(NormConfig):
    """(x - mean) / std · (offset + weight) + bias. Ba et al. 2016, arXiv:1607.06450, equation 4."""

    kind: Literal["layer"] = "layer"
    eps: float = Field(1e-5, ge=0, description="added to the variance, inside the root")
    offset: Literal[0, 1] = Field(0, description="added to the weight in float32; 1 where weights are stored around 0")
    affine: bool = Field(True, description="whether the norm has a learned weight")
    bias: bool = Field(True, description="whether the norm has a learned bias")


NORMS: Choices[type[NormConfig]] = Choices("norm", {"rms": RMSNormConfig, "layer": LayerNormConfig, "none": NormConfig})
Norm = Annotated[SerializeAsAny[NormConfig], BeforeValidator(by_kind(NORMS, default="rms"))]
