"""The comparisons of `verify`: each computes the same thing in two ways and says how far they are apart."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onehop.base.errors import RequestError
from onehop.generate.engine import Engine, left_padded
from onehop.generate.request import LARGEST_SEED
from onehop.generate.sample import wide
from onehop.lm.language_model import LanguageModel
from onehop.parts.keys import Keys
from onehop.parts.linear import is_packed, pack, unpack
from onehop.parts.places import Places
from onehop.parts.score import choose
from onehop.parts.sight import Sight
from onehop.weights.hf import load_hf, save_hf
from onehop.weights.native import load_native, save_native


@dataclass(frozen=True)
class Finding:
    """The worst difference and the tolerance, shares of the largest logit; worst None: nothing to compare."""

    worst: float | None
    tolerance: float = 0.0
    reason: str = ""
    note: str = ""


class Probe:
    """A model and random texts to compare it on. For an encoder-decoder the texts are answers to one source."""

    def __init__(self, lm: LanguageModel, *, length: int, seed: int):
        self.lm, self.model = lm, lm.model
        self.device = lm.model.embed.tokens.weight.device
        self.length = min(length, *self._longest())
        if not 0 <= seed <= LARGEST_SEED:
            raise RequestError(f"seed={seed} must be a whole number, 0 to {LARGEST_SEED}")
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(lm.limits.n_ids, (1, self.length), generator=generator).to(self.device)  # (1, T)
        self.source = torch.randint(lm.limits.n_ids, (1, 7), generator=generator).to(self.device)  # (1, S)

    def logits(self, tokens: Tensor | None = None, **options: Any) -> Tensor:
        """Logits (B, T, V) of one pass without a cache."""
        tokens = self.tokens if tokens is None else tokens
        if self.model.encoder is None:
            return self.model(tokens, **options)
        return self.model(self.source.expand(tokens.size(0), -1), tokens, **options)

    @cached_property
    def plain(self) -> Tensor:
        """The definition: plain attention, plain weights, no cache (1, T, V)."""
        unpack(self.model)
        return self.logits(kernel="plain")

    def compared(self, found: Tensor, expected: Tensor, *, note: str = "") -> Finding:
        """The worst difference of logits as a share of the largest, against what rounding explains."""
        worst = (wide(found) - wide(expected)).abs().max() / wide(expected).abs().max().clamp(min=1e-30)
        return Finding(float(worst), *allowed(expected.dtype, self.model.config.n_layers), note)

    def _longest(self) -> list[int]:
        """The context, and lengths up to which a text's first angles do not depend on how long it becomes."""
        changing: list[Any] = [scheme for scheme in self.model.schemes if scheme.by_length]
        return [self.model.config.max_len, *(scheme.cfg.scaling.original_max_len for scheme in changing)]


def allowed(dtype: torch.dtype, n_layers: int) -> tuple[float, str]:
    """What rounding explains, as a share of the largest logit, and why."""
    name, depth = str(dtype).removeprefix("torch."), 2 * n_layers
    n, what = (16, "") if dtype.itemsize == 2 else (32, ", sums over the width included,")
    reason = f"{n} roundings of {name} in each of {depth} sublayers{what} that add up like a random walk"
    return n * math.sqrt(depth) * torch.finfo(dtype).eps / 2, reason


def kernel(probe: Probe, name: str) -> Finding:
    """One attention kernel against the definition."""
    return probe.compared(probe.logits(kernel=name), probe.plain, note=_chosen(probe, name))


def cache(probe: Probe, kind: str) -> Finding:
    """Half of a text read at once and the rest token by token, against one pass over the whole."""
    model, tokens, half = probe.model, probe.tokens, probe.length // 2
    if model.config.both_ways:
        return Finding(None, note="a model that reads both ways has no past to keep")
    if kind == "ring" and all(spec.window is None for spec in model.cache_specs()):
        return Finding(None, note="no layer has a window, so nothing would be kept in a ring")
    held = model.new_cache(1, kind=kind, capacity=probe.length)
    memory = None if model.encoder is None else model.encode(probe.source)
    options: dict[str, Any] = {"cache": held, "kernel": probe.lm.kernel}
    out = [model(tokens[:, :half], memory=memory, **options)]
    out += [model(tokens[:, i : i + 1], **options) for i in range(half, probe.length)]
    found = torch.cat(out, dim=1)
    agree = int((found.argmax(-1) == probe.plain.argmax(-1)).sum())
    return probe.compared(
        found, probe.plain, note=f"the likeliest token is the same at {agree} of {probe.length} places"
    )


def ragged(probe: Probe) -> Finding:
    """Three texts of unequal length in one batch, padded on the left, against each by itself."""
    lengths = [probe.length, max(1, probe.length // 2), 1]
    texts: Sequence[list[int]] = [probe.tokens[0, :n].tolist() for n in lengths]
    if probe.model.encoder is not None:
        engine = Engine(probe.model, kernel=probe.lm.kernel)
        together = engine.start(texts, room=1, start_id=0).logits
        alone = torch.cat([engine.start([text], room=1, start_id=0).logits for text in texts])
        return probe.compared(together, alone, note="unequal sources")
    tokens, at = left_padded(texts, probe.device)
    found = probe.logits(tokens, at=at, kernel=probe.lm.kernel)
    pairs = [(found[b, -n:], probe.logits(probe.tokens[:, :n])[0]) for b, n in enumerate(lengths)]
    return probe.compared(*(torch.cat(side) for side in zip(*pairs)))


def packed_documents(probe: Probe) -> Finding:
    """Two documents in one row against each by itself."""
    if probe.model.encoder is not None or probe.length < 2:
        return Finding(None, note="an encoder-decoder's texts are not packed")
    cut = probe.length // 3 or 1
    at = torch.cat([torch.arange(cut), torch.arange(probe.length - cut)]).unsqueeze(0).to(probe.device)
    doc = torch.cat([torch.zeros(cut), torch.ones(probe.length - cut)]).long().unsqueeze(0).to(probe.device)
    together = probe.logits(at=at, doc=doc, kernel=probe.lm.kernel)
    alone = torch.cat([probe.logits(probe.tokens[:, :cut]), probe.logits(probe.tokens[:, cut:])], dim=1)
    return probe.compared(together, alone)


def prepared(probe: Probe) -> Finding:
    """The prepared layout of the weights against F.linear."""
    plain = probe.plain
    pack(probe.model)
    if not is_packed(probe.model):
        return Finding(None, note="on this device nothing is prepared")
    return probe.compared(probe.logits(kernel="plain"), plain)


def saved(probe: Probe) -> Finding:
    """Onehop's own folder, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        save_native(probe.model, Path(folder) / "model")
        again = load_native(Path(folder) / "model", parts=probe.lm.parts)
    return _same_bits(probe, again)


def exported(probe: Probe) -> Finding:
    """The Hugging Face layout that the model came in, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        save_hf(probe.model, Path(folder) / "model", family=probe.lm.family)
        again = load_hf(Path(folder) / "model")
    return _same_bits(probe, again)


def transformers(probe: Probe) -> Finding:
    """The same folder opened by transformers, where it is installed."""
    folder, dtype = probe.lm.folder, probe.model.embed.tokens.weight.dtype
    if folder is None:
        return Finding(None, note="this model did not come from a folder")
    try:
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
    except ImportError:
        return Finding(None, note="transformers is not installed: pip install 'onehop-lm[eval]'")
    alone = AutoModelForMaskedLM if probe.model.config.both_ways else AutoModelForCausalLM
    auto = alone if probe.model.encoder is None else AutoModelForSeq2SeqLM
    theirs = auto.from_pretrained(folder, dtype=dtype).eval().to(probe.device)
    given = {"input_ids": probe.tokens}
    if probe.model.encoder is not None:
        given = {"input_ids": probe.source, "decoder_input_ids": probe.tokens}
    expected = theirs(**given).logits
    finding = probe.compared(probe.plain, expected)
    angles = f"{finding.reason}; and rotary angles, which are float32 there"
    return Finding(finding.worst, max(finding.tolerance, 1e-4), angles, _agreement(expected, probe.plain))


def _same_bits(probe: Probe, again: torch.nn.Module) -> Finding:
    ours, theirs = probe.model.state_dict(), again.state_dict()
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name].cpu(), theirs[name]) for name in ours)
    return Finding(0.0 if same else math.inf, 0.0, "the same bits", f"{len(ours)} tensors")


def _agreement(a: Tensor, b: Tensor) -> str:
    same = a.argmax(-1) == b.argmax(-1)
    return f"the likeliest token is the same at {int(same.sum())} of {same.numel()} places"


def _chosen(probe: Probe, name: str) -> str:
    """Which kernels compute the layers, for a whole text and for one further token, and why."""
    said: dict[str, None] = {}
    steps = [("a text", probe.length)] if probe.model.config.both_ways else [("a text", probe.length), ("one token", 1)]
    for when, t in steps:
        for layer in probe.model.layers:
            choice = _choice(layer.attention, t, probe.length, name)
            said[f"{when}: {choice.kernel} ({choice.why})"] = None
    return "; ".join(said)


def _choice(attention: Any, t: int, s: int, name: str) -> Any:
    weight = attention.wo.weight
    like = {"dtype": weight.dtype, "device": weight.device}
    of_q, of_k, of_v = attention.shapes
    q, k, v = (torch.empty(1, n, *shape, **like) for n, shape in ((t, of_q), (s, of_k), (s, of_v)))
    places = Places.run(0, s, weight.device)
    sight = Sight(attention.sees, Places.run(s - t, t, weight.device), places)
    return choose(q, Keys(k, v, places), attention.rule(), sight, kernel=name)
