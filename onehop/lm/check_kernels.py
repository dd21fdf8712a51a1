"""Kernels by themselves: exactly at the edge of each window, with scores that reach the soft cap; and compiled."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from onehop.lm.probe import Finding, Probe, judged, skipped, unit
from onehop.lm.yardstick import distance
from onehop.model.compiler import no_compiler
from onehop.parts.keys import Keys
from onehop.parts.places import Places
from onehop.parts.score import KERNELS, choose
from onehop.parts.score_plain import plain
from onehop.parts.scored import ScoredAttention
from onehop.parts.sight import Sight
from onehop.parts.step import Step

QUERIES = 8
FARTHEST = 2**16  # keys: no window beyond is looked at
SPREAD = 4.0  # standard deviation of the scores


def at_the_edges(probe: Probe) -> Finding:
    """Every kernel in float32, a few queries whose window begins among the keys, against the definition in float64.

    In this dtype a cap that is ignored, a factor or an edge cannot hide behind the rounding of the checkpoint's own.
    """
    found: dict[str, float] = {}
    lost: dict[str, float] = {}
    for name, attention in _rules(probe):
        q, k, v, sight = _drawn(attention, probe)
        want = _flat(plain(q, Keys(k, v, sight.k), attention.rule(), sight))
        q, k, v = q.float(), k.float(), v.float()
        eps, keys = torch.finfo(torch.float32).eps, Keys(k, v, sight.k)
        own = distance(_flat(plain(q, keys, attention.rule(), sight)), want) / eps
        own = max(own, SPREAD)  # of few queries: a score of this size is rounded by half as many eps, whoever makes it
        for kernel in ("tiled", "fused"):
            choice = choose(q, keys, attention.rule(), sight, kernel=kernel)
            if choice.kernel == kernel:
                mixed = KERNELS.get(kernel)(q, keys, attention.rule(), sight)
                found[f"{name} {kernel}"], lost[f"{name} {kernel}"] = distance(_flat(mixed), want) / eps, own
    if not found:
        return skipped("no other kernel computes these rules")
    return judged(found, lost, unit=unit(torch.float32), order=list(found), note=f"{len(found)} kernels and rules")


def _rules(probe: Probe) -> Iterator[tuple[str, ScoredAttention]]:
    """The first layer of each distinct rule."""
    seen = set()
    for i, layer in enumerate(probe.model.layers):
        attention: Any = layer.attention
        if not isinstance(attention, ScoredAttention):
            continue
        rule = attention.rule()
        key = (attention.sees, rule.scale, rule.softcap, id(rule.bias), rule.sinks is None, rule.change)
        if key not in seen and (attention.sees.window or 0) <= FARTHEST:
            seen.add(key)
            yield f"layers.{i}.attention", attention


def _drawn(attention: Any, probe: Probe) -> tuple[Tensor, Tensor, Tensor, Sight]:
    """Random q, k, v (float64) whose scores are spread widely, and the last queries' sight."""
    device = torch.device("cpu") if probe.device.type == "mps" else probe.device
    (of_q, of_k, of_v), s = attention.shapes, (attention.sees.window or probe.short) + 2 * QUERIES
    generator = torch.Generator().manual_seed(0)
    rule = attention.rule()
    wide = SPREAD if rule.softcap is None else max(SPREAD, rule.softcap)
    q, k, v = (
        torch.randn(1, n, *shape, generator=generator, dtype=torch.float64)
        for n, shape in ((QUERIES, of_q), (s, of_k), (s, of_v))
    )
    q = q * (wide / (rule.scale * of_q[-1] ** 0.5))
    # Rounded to float32 first, so that both sides compute with the same numbers.
    q, k, v = (x.float().double().to(device) for x in (q, k, v))
    keys = Places.run(0, s, device)
    return q, k, v, Sight(attention.sees, Places.run(s - QUERIES, QUERIES, device), keys)


def _flat(y: Tensor) -> Tensor:
    return y.flatten(-2)  # (B, T, H·D)


def compiled(probe: Probe) -> Finding:
    """One layer of each kind through torch.compile, attention and feed-forward each from the truth's input."""
    why = no_compiler(probe.device)
    if why is not None:
        return skipped(why)
    whole = probe.whole()
    truth, found = whole.rows[0][0].truth, {}
    eps = torch.finfo(probe.dtype).eps
    torch.compiler.reset()
    for i, layer in _kinds(probe):
        at = f"layers.{i}"
        step = Step(Places.run(0, probe.length, probe.device))
        x, y = truth.given[f"{at}.attention_norm"], truth.given[f"{at}.ffn_norm"]
        mixed = torch.compile(layer.attention)(x, step, None)
        found[f"{at}.attention"] = distance(mixed, truth.values[f"{at}.attention"]) / eps
        out, _ = torch.compile(layer.ffn)(y)
        found[f"{at}.ffn"] = distance(out, truth.values[f"{at}.ffn"]) / eps
    torch.compiler.reset()
    return judged(found, probe.lost, unit=probe.unit, order=list(found), note=f"kinds of layer: {len(found) // 2}")


def _kinds(probe: Probe) -> Iterator[tuple[int, Any]]:
    """The first layer of each kind of block."""
    seen = set()
    for i, (layer, block) in enumerate(zip(probe.model.layers, probe.model.config.layers())):
        if block.name not in seen:
            seen.add(block.name)
            yield i, layer
