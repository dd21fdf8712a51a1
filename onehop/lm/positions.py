"""What positions a model has, in words and numbers, and whether they are the papers'."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from onehop.config.model import ModelConfig, StackConfig
from onehop.config.position import AlibiConfig, RopeConfig, T5Config
from onehop.formats.folder import CONFIG, read_json
from onehop.formats.rope_keys import ORIGINAL, Rope
from onehop.lm.language_model import LanguageModel
from onehop.lm.probe import Finding, simply, skipped
from onehop.parts.bias import Alibi, T5Bias
from onehop.parts.rope import Rope as RopeScheme

EXACT = 1e-12  # both are float64: a few roundings of a power and a product


@dataclass(frozen=True)
class Curve:
    """The frequencies of one rotary scheme in radians per token, before scaling and at some lengths of text."""

    layers: str
    before: list[float]
    after: dict[int, list[float]]
    trained: int


@dataclass(frozen=True)
class Positions:
    """`words` for people; the rest is what is drawn. `slopes`: of ALiBi; `windows`: of each layer, None for all."""

    words: list[str] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)
    buckets: list[list[float]] = field(default_factory=list)  # for each head the bias at distances 0, 1, …
    windows: list[int | None] = field(default_factory=list)
    max_len: int = 0


def positions(lm: LanguageModel) -> Positions:
    """Everything that tells this model's tokens where they stand."""
    config = lm.config
    out = Positions(windows=[b.attention.window for b in config.layers()], max_len=config.max_len)
    out.words.extend(_keys(lm))
    for title, stack, modules in _stacks(lm):
        embed = stack.embed.position
        if embed == "learned":
            out.words.append(
                f"{title}a learned vector for each of the positions 0 to {config.max_len - 1}; no text is longer"
            )
        if embed == "sinusoidal":
            out.words.append(f"{title}sinusoids added to the embedding; they go on beyond {config.max_len}, untrained")
        blocks = list(stack.layers())
        for _, group in groupby(
            range(len(blocks)), key=lambda i: (blocks[i].attention.position, blocks[i].attention.window)
        ):
            numbers = list(group)
            name = title + _span(numbers)
            attention = blocks[numbers[0]].attention
            scheme = modules[numbers[0]].attention.position
            for line in _scheme(name, attention.position, scheme, config, out):
                out.words.append(f"{line}; {_window(attention.window)}")
    return out


def formula(lm: LanguageModel) -> Finding:
    """Frequencies, attention factors and slopes against the papers' formulas, written again here in plain numbers."""
    wrong, n = [], 0
    for title, stack, modules in _stacks(lm):
        for i, block in enumerate(stack.layers()):
            cfg, scheme = block.attention.position, modules[i].attention.position
            for got, want, what in _pairs(cfg, scheme, block.attention, lm.config.max_len):
                n += 1
                worst = max((abs(a - b) / abs(b) for a, b in zip(got, want, strict=True)), default=0.0)
                if not worst <= EXACT:
                    wrong.append(f"{title}layer {i}: {what} is off by {worst:.1e} of the formula's")
    if not n:
        return skipped("no rotary frequencies and no slopes")
    return simply(
        not wrong,
        "; ".join(wrong[:3]) or f"{n} comparisons, to {EXACT:g}",
        where=wrong[0].split(":")[0] if wrong else "",
    )


def _pairs(
    cfg: Any, scheme: Any, attention: Any, max_len: int
) -> Iterator[tuple[Sequence[float], Sequence[float], str]]:
    if isinstance(cfg, RopeConfig) and isinstance(scheme, RopeScheme):
        width = cfg.width or attention.d_head
        lengths = {max_len, getattr(cfg.scaling, "original_max_len", max_len)} if scheme.by_length else {max_len}
        for length in sorted(lengths):
            yield (
                scheme.inv_freq(length).flatten().tolist(),
                frequencies(cfg, width, length),
                f"a frequency at {length} tokens",
            )
        yield [scheme.attention_factor], [warmth(cfg.scaling)], "the attention factor"
    if isinstance(cfg, AlibiConfig) and isinstance(scheme, Alibi):
        yield scheme.slopes, slopes(attention.n_heads), "a slope"


def frequencies(cfg: RopeConfig, d: int, length: int) -> list[float]:
    """Radians per token of each pair in a text of `length` tokens, from the papers: see parts/rope_scaling.py."""
    s: Any = cfg.scaling
    plain = [1 / cfg.theta ** (2 * j / d) for j in range(d // 2)]
    if s is None:
        return plain
    if s.kind == "linear":
        return [f / s.factor for f in plain]
    if s.kind in ("ntk", "dynamic"):
        long = s.kind == "dynamic" and length > s.original_max_len
        factor = s.factor if s.kind == "ntk" else s.factor * length / s.original_max_len - s.factor + 1 if long else 1.0
        theta = cfg.theta * factor ** (d / (d - 2))
        return [1 / theta ** (2 * j / d) for j in range(d // 2)]
    if s.kind == "longrope":
        each = s.long_factor if length > s.original_max_len else s.short_factor
        return [f / e for f, e in zip(plain, each)]
    if s.kind != "yarn":
        return [_blend(f, s) for f in plain]
    ends = [
        d / 2 * math.log(s.original_max_len / (2 * math.pi * turns), cfg.theta) for turns in (s.beta_fast, s.beta_slow)
    ]
    low, high = (math.floor(ends[0]), math.ceil(ends[1])) if s.truncate else ends
    low, high = max(low, 0), min(high, d - 1)
    ramp = [min(max((j - low) / (high - low or 0.001), 0), 1) for j in range(d // 2)]
    return [f * (1 - r) + f / s.factor * r for f, r in zip(plain, ramp)]


def _blend(f: float, s: Any) -> float:
    """One frequency by its wavelength, as in the Llama 3.1 release."""
    wavelength = 2 * math.pi / f
    if wavelength < s.original_max_len / s.high_freq_factor:
        return f
    if wavelength > s.original_max_len / s.low_freq_factor:
        return f / s.factor
    smooth = (s.original_max_len / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1 - smooth) * f / s.factor + smooth * f


def warmth(s: Any) -> float:
    """What multiplies cos and sin."""
    given = getattr(s, "attention_factor", None)
    if given is not None or s is None or s.kind not in ("yarn", "longrope") or (s.factor or 1) <= 1:
        return 1.0 if given is None else float(given)
    if s.kind == "longrope":
        return math.sqrt(1 + math.log(s.factor, s.original_max_len))
    top, bottom = (1.0 if s.mscale is None else s.mscale), s.mscale_all_dim or 0.0
    return (1 + 0.1 * top * math.log(s.factor)) / (1 + 0.1 * bottom * math.log(s.factor))


def slopes(n: int) -> list[float]:
    """ALiBi's slopes, as its release's recursion has them."""
    if n & (n - 1) == 0:
        return [2.0 ** (-8 / n * (h + 1)) for h in range(n)]
    p = 2 ** (n.bit_length() - 1)
    return slopes(p) + slopes(2 * p)[::2][: n - p]


def _keys(lm: LanguageModel) -> list[str]:
    """Which keys of the checkpoint's own config.json said so, and in which age's spelling."""
    if lm.folder is None or not (lm.folder / CONFIG).is_file():
        return []
    raw = read_json(lm.folder / CONFIG)
    if lm.family is None:
        return ["positions are spelled in onehop's own config (attention.position, embed.position, max_len)"]
    rows: list[Any] = [row for row in lm.family.keys if isinstance(row, Rope)]
    names = {name for row in rows for name in row.names} | {
        "sliding_window",
        "layer_types",
        "max_position_embeddings",
        ORIGINAL,
    }
    shown = [f"{name}={raw[name]}" for name in raw if name in names and raw[name] is not None]
    new = isinstance(raw.get("rope_parameters"), dict)
    old = any(raw.get(name) is not None for row in rows for name in (row.old_theta, "rope_scaling"))
    ages = {(True, True): "both ages' spelling, which agree", (True, False): "today's spelling (rope_parameters)",
            (False, True): "the older spelling (rope_theta, rope_scaling)"}  # fmt: skip
    absent = "no key for rotary angles: the family's defaults" if rows else "no rotary keys"
    return [f"read from config.json: {', '.join(shown) or 'nothing'}: {ages.get((new, old), absent)}"]


def _stacks(lm: LanguageModel) -> Iterator[tuple[str, Any, Any]]:
    """The title, the config and the layers of each stack."""
    both = lm.config.encoder is not None
    if lm.config.encoder is not None and lm.model.encoder is not None:
        encoder: StackConfig = lm.config.encoder
        yield "encoder, ", encoder, lm.model.encoder.layers
    yield "decoder, " if both else "", lm.config, lm.model.layers


def _scheme(name: str, cfg: Any, scheme: Any, config: ModelConfig, out: Positions) -> Iterator[str]:
    """One line about a position scheme, and what of it is to be drawn."""
    if isinstance(cfg, RopeConfig) and isinstance(scheme, RopeScheme):
        yield f"{name}: {_rope(name, cfg, scheme, config.max_len, out)}"
    elif isinstance(cfg, AlibiConfig) and isinstance(scheme, Alibi):
        out.slopes[:] = scheme.slopes
        yield (
            f"{name}: ALiBi, scores fall by {max(scheme.slopes):.3g} to {min(scheme.slopes):.3g} per token of distance "
            f"({scheme.n_heads} heads); no length ends it, {config.max_len} is the trained one"
        )
    elif isinstance(cfg, T5Config) and isinstance(scheme, T5Bias):
        row = scheme.table[scheme._buckets.on(scheme.table.device)][: scheme.reach + 1].flip(0)  # distances 0, 1, …
        out.buckets[:] = row.t().float().tolist()
        yield (
            f"{name}: a learned bias for each of {cfg.n_buckets} buckets of distance; all distances from "
            f"{cfg.max_distance} on share the last, so no length is beyond it"
        )
    else:
        yield f"{name}: {'no positions in attention' if cfg.kind == 'none' else f'positions of your own ({cfg.kind})'}"


def _rope(name: str, cfg: RopeConfig, scheme: RopeScheme, max_len: int, out: Positions) -> str:
    s: Any = cfg.scaling
    trained = getattr(s, "original_max_len", max_len)
    lengths = sorted({trained, max_len}) if scheme.by_length else [max_len]
    after = {n: scheme.inv_freq(n).flatten().tolist() for n in lengths}
    before = [1 / cfg.theta ** (2 * j / scheme.width) for j in range(scheme.width // 2)]
    out.curves.append(Curve(name, before, after, trained))
    longest = after[lengths[-1]]
    pairs, unseen = len(before), sum(2 * math.pi / f > trained for f in longest)
    words = f"RoPE on {scheme.width} dims, theta {cfg.theta:g}, wavelengths {2 * math.pi / longest[0]:.3g} to "
    words += f"{2 * math.pi / longest[-1]:.3g} tokens"
    if s is None:
        words += f", unscaled; extrapolation begins at position {max_len}"
        return f"{words}, where {unseen} of {pairs} pairs have not turned once"
    slower = [b / a for a, b in zip(longest, before)]
    changed = sum(abs(r - 1) > 1e-9 for r in slower)
    words += f", {s.kind} scaling changes {changed} of {pairs} pairs (by up to {max(slower):.3g}×)"
    words += f" beyond {trained} tokens" if scheme.by_length else ""
    words += f", cos and sin × {scheme.attention_factor:.4g}" if scheme.attention_factor != 1 else ""
    return f"{words}; trained to {trained} tokens before scaling, extrapolation begins at position {max_len}"


def _window(window: int | None) -> str:
    return "each token sees all before it" if window is None else f"each token sees itself and {window - 1} before it"


def _span(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"layer {first}" if first == last else f"layers {first}-{last}"
