"""Paths through the model, each compared with the plain definition in float64, sublayer by sublayer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onehop.generate.engine import left_padded
from onehop.lm.probe import Finding, Pass, Probe, skipped
from onehop.lm.yardstick import Laid
from onehop.parts.keys import Keys
from onehop.parts.linear import is_packed, pack
from onehop.parts.places import Places
from onehop.parts.score import Choice, choose
from onehop.parts.scored import ScoredAttention
from onehop.parts.sight import Sight

DECODED = 24  # tokens that are read one by one


def kernel(probe: Probe, name: str) -> Finding:
    """One attention kernel."""
    return probe.compared([probe.plainly(name)], note=chosen(probe, name))


def prepared(probe: Probe) -> Finding:
    """The prepared layout of the weights."""
    probe.lost  # noqa: B018 measured before anything is prepared
    pack(probe.model)
    if not is_packed(probe.model):
        return skipped("on this device nothing is prepared")
    return probe.compared([probe.plainly("plain")])


def cache(probe: Probe, kind: str) -> Finding:
    """A text read at once but for its end, which is read token by token."""
    if any(block.attention.sees == "all" for block in probe.model.config.blocks):
        return skipped("every token sees the later ones, so nothing can be kept")
    if kind == "ring" and all(spec.window is None for spec in probe.model.cache_specs()):
        return skipped("no layer has a window, so nothing would be kept in a ring")
    cut = probe.length - min(DECODED, probe.length // 2)
    held = probe.model.new_cache(1, kind=kind, capacity=probe.length)
    *source, tokens = probe.inputs(0, probe.length)
    whole, kernel = probe.whole(), probe.lm.kernel
    read: dict[str, Any] = {"memory": None}

    def encode(**options: Any) -> None:
        read["memory"] = probe.model.encode(*source, kernel=kernel, **options)

    passes: list[Pass] = [(whole, encode)] if source else []
    for start, stop in [(0, cut), *((i, i + 1) for i in range(cut, probe.length))]:
        laid = Laid([[whole.rows[0][0]._replace(start=start, stop=stop)]])
        passes.append(
            (laid, lambda part=tokens[:, start:stop], **o: probe.model(part, cache=held, kernel=kernel, **read, **o))
        )
    return probe.compared(passes)


def batch(probe: Probe) -> Finding:
    """Texts of equal length in one batch."""
    return _together(probe, [probe.short] * 3, [probe.source.size(1)] * 3)


def ragged(probe: Probe) -> Finding:
    """Texts of unequal length (and unequal sources) in one batch, padded on the left."""
    return _together(probe, [probe.short, max(1, probe.short // 2), 1], [7, 3, 1])


def _together(probe: Probe, lengths: Sequence[int], sources: Sequence[int]) -> Finding:
    tokens, at = left_padded([probe.tokens[b, :n].tolist() for b, n in enumerate(lengths)], probe.device)
    options: dict[str, Any] = {"at": at, "kernel": probe.lm.kernel}
    if probe.model.encoder is None:
        laid = Laid([[probe.part(b, 0, n)] for b, n in enumerate(lengths)])
        return probe.compared([(laid, partial(probe.model, tokens, **options))])
    source, source_at = left_padded([probe.source[b, :n].tolist() for b, n in enumerate(sources)], probe.device)
    pairs = [probe.sourced(b, s, n) for b, (n, s) in enumerate(zip(lengths, sources))]
    laid = Laid([[target] for target, _ in pairs], [[source] for _, source in pairs])
    return probe.compared([(laid, partial(probe.model, source, tokens, source_at=source_at, **options))])


def packed_documents(probe: Probe) -> Finding:
    """Two documents in one row."""
    if probe.model.encoder is not None or probe.length < 2:
        return skipped("an encoder-decoder's texts are not packed")
    first = probe.short // 3 or 1
    lengths = [first, probe.short - first]
    at = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0).to(probe.device)
    doc = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]).unsqueeze(0).to(probe.device)
    tokens = torch.cat([probe.tokens[b, :n] for b, n in enumerate(lengths)]).unsqueeze(0)
    laid = Laid([[probe.part(b, 0, n) for b, n in enumerate(lengths)]])
    return probe.compared([(laid, partial(probe.model, tokens, at=at, doc=doc, kernel=probe.lm.kernel))])


def chosen(probe: Probe, name: str) -> str:
    """Which kernels compute the layers, for a whole text and for one further token, and why."""
    said: dict[str, None] = {}
    steps = [("a text", probe.length)] if probe.model.config.both_ways else [("a text", probe.length), ("one token", 1)]
    for when, t in steps:
        for layer in probe.model.layers:
            choice = _choice(layer.attention, t, probe.length, name)  # type: ignore[arg-type]
            said[f"{when}: {choice.kernel} ({choice.why})"] = None
    return "; ".join(said)


def _choice(attention: ScoredAttention, t: int, s: int, name: str) -> Choice:
    q, keys, sight = like(attention, t, s)
    return choose(q, keys, attention.rule(), sight, kernel=name)


def like(attention: Any, t: int, s: int) -> tuple[Tensor, Keys, Sight]:
    """Queries and keys of an attention's shapes, without content, for the last `t` of `s` tokens."""
    weight = attention.wo.weight
    of_q, of_k, of_v = attention.shapes
    q, k, v = (
        torch.empty(1, n, *shape, dtype=weight.dtype, device=weight.device)
        for n, shape in ((t, of_q), (s, of_k), (s, of_v))
    )
    places = Places.run(0, s, weight.device)
    return q, Keys(k, v, places), Sight(attention.sees, Places.run(s - t, t, weight.device), places)
