"""RoPE: turn q and k by angles proportional to their positions, so that q·k depends on the distance between them."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from onehop.config.position import RopeConfig
from onehop.parts.by_hand import by_hand
from onehop.parts.constant import Constant
from onehop.parts.rope_scaling import STRETCHES, plain_inv_freq
from onehop.parts.scheme import PositionScheme


class Rope(PositionScheme):
    """Rotary positions: dims j and j + width/2 of each head are a pair, turned by position · inv_freq[j] radians.

    Su et al. 2021, arXiv:2104.09864, equation 34, with its pairs (2j, 2j + 1) stored as (j, j + width/2); dims from
    `width` on are left alone. Nothing is learned and nothing follows the model's dtype: angles are taken in float64
    (float32 on mps) and rounded to float32 only as cos and sin, because bf16 cannot even hold position 257.
    """

    turns = True

    def __init__(self, cfg: RopeConfig, d_head: int):
        super().__init__()
        self.cfg, self.width = cfg, cfg.width or d_head
        self._key = cfg.model_dump_json(), self.width  # text: the compiler cannot hash a config
        plain = plain_inv_freq(cfg.theta, self.width)  # (width/2,)
        self._plain = Constant(plain)
        self._stretch = None if cfg.scaling is None else STRETCHES.get(cfg.scaling.kind)
        self.by_length = self._stretch is not None and self._stretch.by_length
        self.attention_factor = 1.0 if self._stretch is None else self._stretch.attention_factor(cfg.scaling)
        self._fixed = Constant(self._stretched(plain, None))

    @property
    def key(self) -> Hashable:
        return self._key

    def inv_freq(self, length: int | Tensor | None = None) -> Tensor:
        """Radians per token of each pair, float64: (width/2,), or (B, width/2) for texts of `length` (B,) tokens."""
        if isinstance(length, int):
            length = torch.tensor(length, device="cpu")
        if length is None or not self.by_length:
            return self._fixed.on(torch.device("cpu") if length is None else length.device)
        return self._stretched(self._plain.on(length.device), length)

    def angles(self, at: Tensor, *, dtype: torch.dtype, length: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The cos and sin at positions (B, T) of texts of `length` (B,) or (B, T) tokens -> (B, T, 1, width) twice.

        Both dims of a pair are there; the first one's sin is negative, as `rotate` wants it. float64 for q and k of
        that `dtype`, else float32. Both carry the attention factor.
        """
        exact = torch.float32 if at.device.type == "mps" else torch.float64
        if self.by_length and length is not None:
            length = length.unsqueeze(1) if length.dim() == 1 else length
            freq = self._stretched(self._plain.on(at.device), length).unsqueeze(-2)  # (B, 1 | T, 1, width/2)
        else:
            freq = self._fixed.on(at.device)  # (width/2,)
        angle = at[..., None, None].to(exact) * freq.to(exact)  # (B, T, 1, width/2)
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        both: tuple[Tensor, Tensor] = (in_graphs if torch.compiler.is_compiling() else _cos_sin)(
            angle, self.attention_factor, kept
        )
        return both

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Vectors (B, T, H, D) turned by angles (B, T, 1, width) -> (B, T, H, D); computed in cos's dtype."""
        if by_hand(x):
            turned: Tensor = _Turned.apply(x, cos, sin)
            return turned
        return _turn(x, cos, sin)

    def extra_repr(self) -> str:
        return f"width={self.width}, theta={self.cfg.theta:g}, scaling={self.cfg.scaling and self.cfg.scaling.kind}"

    def _stretched(self, plain: Tensor, length: Tensor | None) -> Tensor:
        if self._stretch is None:
            return plain
        return self._stretch.inv_freq(self.cfg.scaling, plain, theta=self.cfg.theta, length=length)


def _cos_sin(angle: Tensor, factor: float, kept: torch.dtype) -> tuple[Tensor, Tensor]:
    """The cos and sin of both dims of each pair, the first one's sin negative, times `factor`, in the dtype `kept`."""
    cos, sin = angle.cos(), angle.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    cos, sin = cos.to(kept), sin.to(kept)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


# For the compiler one operation that it calls as it is: it would take a cosine again wherever one is read, in each
# layer and in backward, number by number.
in_graphs = torch.library.custom_op("onehop::cos_sin", _cos_sin, mutates_args=())


@in_graphs.register_fake
def _(angle: Tensor, factor: float, kept: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*angle.shape[:-1], 2 * angle.size(-1))
    return angle.new_empty(shape, dtype=kept), angle.new_empty(shape, dtype=kept)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first dims of x (B, T, H, D) turned by angles (B, T, 1, width): x · cos, and each pair's other dim · sin."""
    width = cos.size(-1)
    whole = width == x.size(-1)
    turning = (x if whole else x[..., :width]).to(cos.dtype)
    turned = torch.addcmul(turning * cos, turning.roll(width // 2, -1), sin).to(x.dtype)
    return turned if whole else torch.cat([turned, x[..., width:]], dim=-1)


class _Turned(torch.autograd.Function):
    """`_turn`, whose gradient is turned back: one turn, where the gradients of its operations would take three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Turned.apply(g, cos, -sin), None, None
