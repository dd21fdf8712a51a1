"""The metadata of rotary positions: base, width and every way of stretching that a GGUF file can tell. No torch.

Llama 3's scaling and LongRoPE are no keys but tensors of what each pair's frequency is divided by. Those of Llama 3 are
recognised by their values; any others are read as LongRoPE's, which divides by a list as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.config.position import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RopeConfig,
    YarnScaling,
)
from onehop.formats.gguf.header import float32, shortest
from onehop.formats.keys import Json, number
from onehop.formats.rope_keys import base

LENGTH = "context_length"
SCALING = "rope.scaling."
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQS, LONG, SHORT)
LLAMA3_LENGTHS = tuple(2**n for n in range(10, 18))
WORDS = ("type", "factor", "original_context_length", "finetuned", "attn_factor", "yarn_beta_fast", "yarn_beta_slow")
IDLE = {"yarn_ext_factor": (1.0,), "yarn_attn_factor": (1.0,), "yarn_log_multiplier": (0.0,), "alpha": (0.0,)}
UNNAMED = {f"{SCALING}{key}": values for key, values in IDLE.items()}


@dataclass(frozen=True)
class Rope:
    """A row for theta, the turning width, scaling and the longest text; `theta` is what llama.cpp takes by default."""

    theta: float = 10000.0

    @property
    def names(self) -> tuple[str, ...]:
        scaling = (f"{SCALING}{word}" for word in (*WORDS, *IDLE))
        return (LENGTH, "rope.freq_base", "rope.dimension_count", "rope.scale_linear", *scaling, *FACTORS)

    def read(self, raw: Json) -> Json:
        length = number(LENGTH, raw.get(LENGTH))
        theta = number("rope.freq_base", raw.get("rope.freq_base", self.theta))
        scaling = _scaling(raw, length, theta)
        path = "attention.position"
        width = raw.get("rope.dimension_count")
        if scaling is not None and scaling["kind"] == "yarn":
            length = max(length, int(scaling["original_max_len"] * scaling["factor"]))
        turning = {} if width is None or width == _d_head(raw) else {f"{path}.width": width}
        return {f"{path}.theta": theta, f"{path}.scaling": scaling, "max_len": length, **turning}

    def write(self, config: ModelConfig) -> Json:
        attention = next(config.layers()).attention
        position = attention.position
        assert isinstance(position, RopeConfig), "the architecture's structure says rope"
        theta, width = base(position, attention.d_head), position.width or attention.d_head
        return {
            LENGTH: config.max_len,
            "rope.freq_base": theta,
            "rope.dimension_count": width,
            **_write_scaling(position, theta, width),
        }


def _d_head(raw: Json) -> int:
    given = raw.get("attention.key_length")
    if given is not None:
        return int(number("attention.key_length", given))
    heads = raw.get("attention.head_count")
    heads = heads[0] if isinstance(heads, list) and heads else heads
    return int(number("embedding_length", raw.get("embedding_length")) // number("attention.head_count", heads))


def _scaling(raw: Json, length: int, theta: float) -> Json | None:
    """The scaling as our table."""
    for key, values in UNNAMED.items():
        if raw.get(key) not in (None, *values):
            raise CheckpointError(f"config.json: {key}={raw[key]!r} cannot be honoured. Needed: {values[0]}.")
    kind, factor = raw.get(f"{SCALING}type", "linear"), raw.get(f"{SCALING}factor") or raw.get("rope.scale_linear")
    original = raw.get(f"{SCALING}original_context_length") or length
    gain = raw.get(f"{SCALING}attn_factor", 1.0)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise CheckpointError(f"config.json: {SCALING}type={kind!r} is not known. Known: none, linear, yarn, longrope.")
    if LONG in raw or SHORT in raw:
        if not {LONG, SHORT} <= raw.keys():
            raise CheckpointError(f"config.json: only one of {LONG} and {SHORT} is there. Get the whole file.")
        return _longrope(raw[SHORT], raw[LONG], original, gain)
    if FREQS in raw and not all(divisor == 1 for divisor in raw[FREQS]):
        if kind == "yarn" or (factor not in (None, 0, 1)):
            raise CheckpointError(f"config.json: {FREQS} and {SCALING}factor={factor!r} together are not known.")
        return _llama3(raw[FREQS], theta) or _longrope(raw[FREQS], raw[FREQS], 1 << 30, gain)
    if kind == "yarn":
        ends = {field: raw.get(f"{SCALING}yarn_{field}") for field in ("beta_fast", "beta_slow")}
        factor = number(f"{SCALING}factor", factor)
        warm = {} if gain == 1.0 else {"attention_factor": gain * (0.1 * math.log(factor) + 1)}
        table = {"kind": "yarn", "factor": factor, "original_max_len": original, **warm}
        return table | {field: value for field, value in ends.items() if value}
    if gain != 1.0:
        raise CheckpointError(f"config.json: {SCALING}attn_factor={gain!r} has no meaning for {SCALING}type={kind!r}.")
    return None if kind == "none" or factor in (None, 0, 1) else {"kind": "linear", "factor": factor}


def _longrope(short: Sequence[float], long: Sequence[float], original: int, gain: float) -> Json:
    return {
        "kind": "longrope",
        "short_factor": tuple(short),
        "long_factor": tuple(long),
        "original_max_len": original,
        "attention_factor": gain,
    }


def llama3_divisors(scaling: Llama3Scaling, theta: float, width: int) -> list[float]:
    """What Llama 3's scaling divides each pair's frequency by, in float32. (Llama 3.1's release, Meta 2024.)"""
    out = []
    for j in range(0, width, 2):
        turns = scaling.original_max_len / (2 * math.pi * theta ** (j / width))
        blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        blend = min(1.0, max(0.0, blend))
        out.append(float32(1 / ((1 - blend) / scaling.factor + blend)))
    return out


def _llama3(divisors: Sequence[float], theta: float) -> Json | None:
    """The published form of Llama 3's scaling that gives these divisors, if one does."""
    for original in LLAMA3_LENGTHS:
        table = {"kind": "llama3", "factor": max(divisors), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaling = Llama3Scaling(factor=max(divisors), original_max_len=original)
        wanted = llama3_divisors(scaling, theta, 2 * len(divisors))
        if all(math.isclose(a, b, rel_tol=1e-5) for a, b in zip(wanted, divisors, strict=True)):  # float32 frequencies
            return {**table, "original_max_len": original}
    return None


def _write_scaling(position: RopeConfig, theta: float, width: int) -> Json:
    scaling = position.scaling
    if scaling is None or isinstance(scaling, NTKScaling):  # a fixed NTK scaling is another base
        return {}
    if isinstance(scaling, Llama3Scaling):
        return {FREQS: [shortest(d) for d in llama3_divisors(scaling, theta, width)]}
    if isinstance(scaling, LinearScaling):
        return {f"{SCALING}type": "linear", f"{SCALING}factor": scaling.factor}
    if isinstance(scaling, LongRopeScaling):
        gain = 1.0 if scaling.attention_factor is None else scaling.attention_factor
        return {
            LONG: list(scaling.long_factor),
            SHORT: list(scaling.short_factor),
            f"{SCALING}type": "longrope",
            f"{SCALING}original_context_length": scaling.original_max_len,
            f"{SCALING}attn_factor": gain,
        }
    if isinstance(scaling, YarnScaling):
        warmth = 0.1 * math.log(scaling.factor) + 1
        gain = 1.0 if scaling.attention_factor is None else scaling.attention_factor / warmth
        return {
            f"{SCALING}type": "yarn",
            f"{SCALING}factor": scaling.factor,
            f"{SCALING}original_context_length": scaling.original_max_len,
            f"{SCALING}yarn_beta_fast": scaling.beta_fast,
            f"{SCALING}yarn_beta_slow": scaling.beta_slow,
            **({} if gain == 1.0 else {f"{SCALING}attn_factor": gain}),
        }
    return {}  # what does not come back is refused by name
