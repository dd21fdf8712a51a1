"""Devices: what their makers say they can do, each figure with its source; and what a machine was measured to do.

FLOP/s are of dense matrix products with sums in float32, without sparsity. bytes/s are of the device's own memory.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onehop.base.errors import ConfigError, did_you_mean

TERA, GIGA = 1e12, 1e9
Rates = Mapping[str, Mapping[int, Mapping[int, float]]]  # FLOP/s by type of number, width and length
LEAST, MOST = 1e-12, 1e24  # of what may be measured: seconds, bytes, FLOP/s
PHASES = ("training", "inference")
RATES = ("linear", "trained", "attention", "attention_back", "orthogonal")


@dataclass(frozen=True)
class Resident:
    """What a process holds in memory beside its live tensors: libraries (`base`), and a `share` of others.

    Those are in training the tensors, between which an allocator leaves gaps, and in inference what is prepared of the
    weights, which stay in memory as the file had them for as long as nobody else needs the room.
    """

    base: float
    share: float

    def of(self, live: float, others: float) -> float:
        """Bytes of resident memory."""
        return self.base + live + self.share * others


@dataclass(frozen=True)
class Device:
    """One device. `flops`: FLOP/s by type of number; one that is not there runs as `peak` says.

    `resident`: what processes were measured to hold there, by phase (training, inference).
    """

    name: str
    memory: float
    bandwidth: float
    flops: Mapping[str, float]
    source: str
    kind: Literal["gpu", "cpu"] = "gpu"
    pace: "Pace | None" = None
    resident: Mapping[str, Resident] = field(default_factory=dict)

    def multiplies(self, dtype: str) -> str:
        """The type in which numbers of `dtype` are multiplied: quantised weights as bfloat16, where that is fast."""
        for name in (dtype, *(("bfloat16", "float16") if dtype != "float64" else ()), "float32"):
            if name in self.flops:
                return name
        return max(self.flops, key=lambda name: self.flops[name])

    def peak(self, dtype: str) -> float:
        """FLOP/s for numbers of `dtype`, in the type in which they are multiplied."""
        return self.flops[self.multiplies(dtype)]


@dataclass(frozen=True)
class Pace:
    """What was measured on a machine, beyond its peaks, in seconds, bytes/s and FLOP/s.

    `linear`: FLOP/s of a linear map from w to 2 · w in inference, by type, width w and number of rows, its weight not
    in a cache; `trained`: of a training step's three products. `attention`, `attention_back`: of fused causal attention
    and of its gradient, by type, width of a head and number of tokens. `orthogonal`: of a step of Muon, by type and the
    shorter and longer side of its matrices.
    `passes`: bytes/s of operations number by number. `functions`: numbers/s through an activation function, forward and
    back. `per_layer`: seconds that a layer takes beside its arithmetic, by phase (decode, prefill, training) and type.
    `whole`: how many times its products, attention and layers' costs a model was measured to take, by phase and type;
    `passed`: and how many times its passes number by number.
    """

    linear: Rates
    trained: Rates
    attention: Rates
    attention_back: Rates
    orthogonal: Rates
    passes: float
    functions: Mapping[str, float]
    per_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    whole: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    passed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _gpu(
    name: str, *, memory: float, bandwidth: float, bf16: float, fp32: float, source: str, fp8: float | None = None
) -> Device:
    flops = {"bfloat16": bf16 * TERA, "float16": bf16 * TERA, "float32": fp32 * TERA}
    if fp8 is not None:
        flops["float8"] = fp8 * TERA
    return Device(name, memory * GIGA, bandwidth * GIGA, flops, source)


def _cpu(name: str, *, memory: float, bandwidth: float, fp32: float, bf16: float | None, source: str) -> Device:
    flops = {"float32": fp32 * TERA} | ({} if bf16 is None else {"bfloat16": bf16 * TERA})
    return Device(name, memory * GIGA, bandwidth * GIGA, flops, source, kind="cpu")


# float32 on NVIDIA's data-centre devices: without tensor cores, as PyTorch has it unless asked for TF32.
DEVICES: tuple[Device, ...] = (
    _gpu("H100", memory=80, bandwidth=3350, bf16=989.4, fp32=67, fp8=1978.9,
         source="NVIDIA H100 datasheet, SXM; half of the figures with sparsity"),
    _gpu("H200", memory=141, bandwidth=4800, bf16=989.4, fp32=67, fp8=1978.9,
         source="NVIDIA H200 datasheet, SXM; half of the figures with sparsity"),
    _gpu("A100", memory=80, bandwidth=2039, bf16=312, fp32=19.5,
         source="NVIDIA A100 datasheet, 80 GB SXM"),
    _gpu("B200", memory=180, bandwidth=8000, bf16=2250, fp32=75, fp8=4500,
         source="NVIDIA DGX B200 and HGX datasheets, an eighth; half of the figures with sparsity; "
                "earlier briefs have 192 GB, and 80 TFLOP/s in float32"),
    _gpu("L40S", memory=48, bandwidth=864, bf16=362.05, fp32=91.6, fp8=733,
         source="NVIDIA L40S datasheet, without sparsity"),
    _gpu("RTX 4090", memory=24, bandwidth=1008, bf16=165.2, fp32=82.6, fp8=330.3,
         source="NVIDIA Ada GPU architecture whitepaper, appendix A, sums in float32"),
    _gpu("RTX 5090", memory=32, bandwidth=1792, bf16=209.5, fp32=104.8, fp8=419,
         source="NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A, sums in float32"),
    _gpu("M1 Max", memory=64, bandwidth=400, bf16=10.4, fp32=10.4,
         source="Apple newsroom, 18 October 2021; memory is shared with the CPU, 16 bits run as fast as 32"),
    _gpu("M1 Ultra", memory=128, bandwidth=800, bf16=21, fp32=21,
         source="Apple newsroom, 8 March 2022; memory is shared with the CPU, 16 bits run as fast as 32"),
    _gpu("M4 Max", memory=128, bandwidth=546, bf16=16.2, fp32=16.2,
         source="Apple newsroom, 30 October 2024 (memory, bandwidth); 40 cores x 128 lanes x 2 x 1.58 GHz, "
                "a clock that others measured: Apple names none"),
    _cpu("Ryzen 9 7950X", memory=128, bandwidth=83.2, fp32=2.3, bf16=4.6,
         source="AMD product page: 2 x DDR5-5200; 16 cores x 32 (bfloat16: 64) per cycle x 4.5 GHz (base)"),
    _cpu("EPYC 9654", memory=768, bandwidth=460.8, fp32=7.4, bf16=14.7,
         source="AMD product page: 12 x DDR5-4800, here of 64 GB (it takes more); "
                "96 cores x 32 (bfloat16: 64) per cycle x 2.4 GHz (base)"),
    _cpu("Xeon 8480+", memory=512, bandwidth=307.2, fp32=7.2, bf16=114.7,
         source="Intel ARK: 8 x DDR5-4800, here of 64 GB (it takes more); "
                "56 cores x 64 (AMX: 1024) per cycle x 2.0 GHz (base)"),
    _cpu("Core i9-14900K", memory=192, bandwidth=89.6, fp32=1.43, bf16=None,
         source="Intel ARK: 2 x DDR5-5600; (8 x 32 at 3.2 GHz + 16 x 16 at 2.4 GHz, base) per cycle"),
)  # fmt: skip


def device(name: str) -> Device:
    """A device of the table, by its name in any spelling ('rtx4090'). Raises ConfigError with the nearest name."""
    known = {_plain(found.name): found for found in DEVICES}
    if _plain(name) in known:
        return known[_plain(name)]
    close = did_you_mean(_plain(name), known)
    for plain, found in known.items():
        close = re.sub(rf"\b{re.escape(plain)}\b", found.name, close)
    raise ConfigError(f"the device {name!r} is not in the table. {close} Or leave it out for this machine.")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("geforce")


def to_dict(found: Device) -> dict[str, Any]:
    """A device as JSON holds it."""
    out: dict[str, Any] = {
        "name": found.name, "memory": found.memory, "bandwidth": found.bandwidth, "flops": dict(found.flops),
        "source": found.source, "kind": found.kind,
    }  # fmt: skip
    if found.resident:
        out["resident"] = {phase: asdict(one) for phase, one in found.resident.items()}
    if found.pace is not None:
        p = found.pace
        out["pace"] = {
            **{key: _texts(getattr(p, key)) for key in RATES},
            "passes": p.passes,
            "functions": dict(p.functions),
            "per_layer": {phase: dict(by) for phase, by in p.per_layer.items()},
            "whole": {phase: dict(by) for phase, by in p.whole.items()},
            "passed": {phase: dict(by) for phase, by in p.passed.items()},
        }
    return out


def from_dict(raw: Mapping[str, Any]) -> Device:
    """A device from what `to_dict` gave. Raises ConfigError where it is damaged."""
    try:
        fields = {key: _same(raw[key], like) for key, like in LIKE.items()}
        held = _same(raw.get("resident", {}), {"": {"": float}})
        fields["resident"] = {phase: Resident(**held[phase]) for phase in PHASES} if held else {}
        if not fields["flops"]:
            raise ValueError("no rate of products is there")
        pace = raw.get("pace")
        if pace is None:
            return Device(**fields)
        rates: dict[str, Any] = {key: _numbers(pace[key]) for key in RATES}
        rest = {key: _same(pace[key], like) for key, like in LIKE_PACE.items()}
        rest["functions"] = {way: _rate(pace["functions"][way]) for way in ("forward", "back")}
        return Device(**fields, pace=Pace(**rates, **rest))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the measurement of this machine is damaged, or older than this onehop ({error!r}). "
            "Repeat onehop plan --measure."
        ) from error


# What a measurement holds: a type, or the table of one.
LIKE: dict[str, Any] = {
    "name": str,
    "memory": float,
    "bandwidth": float,
    "flops": {"": float},
    "source": str,
    "kind": str,
}
LIKE_PACE: dict[str, Any] = {
    "passes": float, "per_layer": {"": {"": float}}, "whole": {"": {"": float}},
    "passed": {"": {"": float}},
}  # fmt: skip


def _same(value: Any, like: Any) -> Any:
    """The value, if it is of that type. Raises ValueError."""
    if isinstance(like, dict):
        return {key: _same(inner, like[""]) for key, inner in value.items()}
    if like is float:
        return _rate(value)
    if not isinstance(value, like):
        raise ValueError(f"{value!r} is no text")
    return value


def _rate(value: Any) -> float:
    """A number that says how fast or how much, in any machine's range. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value <= MOST:
        raise ValueError(f"{value!r} is no such number")
    return float(value)


def _texts(rates: Rates) -> dict[str, dict[str, dict[str, float]]]:
    return {
        kind: {str(width): {str(n): rate for n, rate in by.items()} for width, by in widths.items()}
        for kind, widths in rates.items()
    }


def _numbers(raw: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Rates:
    """Rates from their texts; those of float32 are always there. Raises KeyError or ValueError."""
    out = {
        kind: {_above_0(width): {_above_0(n): _rate(rate) for n, rate in by.items()} for width, by in widths.items()}
        for kind, widths in raw.items()
    }
    if not out["float32"] or not all(by for widths in out.values() for by in widths.values()):
        raise ValueError("a table of rates is empty")
    return out


def _above_0(text: str) -> int:
    if (n := int(text)) < 1:
        raise ValueError(f"{text} is no width or length")
    return n
