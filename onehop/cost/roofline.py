"""How long a phase takes: the longer of its arithmetic and its traffic (Williams et al. 2009, "Roofline").

For a device of the table this is a bound that nothing beats: its maker's figures, with nothing lost. For a machine that
was measured the parts are added: products at the rate they were measured to have at this number of rows, attention,
activation functions, what goes number by number, and what a layer costs beside its arithmetic. Models that were
measured whole say how many times its products and its passes over numbers a model takes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onehop.config.ffn import MoEConfig
from onehop.config.model import ModelConfig, StackConfig
from onehop.cost.activations import Run
from onehop.cost.devices import Device, Rates
from onehop.cost.flops import Flops, Pass, forward, looks, next_token, products, reading, rows_of
from onehop.cost.kv_cache import kv_cache
from onehop.cost.memory import layers_kept
from onehop.cost.muon import moved, muon_flops, orthogonal_flops
from onehop.cost.numbers import bytes_per_weight
from onehop.cost.serving import InferencePlan
from onehop.cost.traffic import least_bytes
from onehop.cost.weights import Weight

ADAMW_BYTES = 28  # per parameter, in float32: p, gradient and two moments read, p and moments written
READ = 2  # times that what a sublayer makes is written or read in a forward pass
TOUCHED = 3  # times that a kept number is read or written: by its product, by its gradient, and that gradient's own


@dataclass(frozen=True)
class Phase:
    """One pass: how many tokens it makes or reads, and seconds: in all, and of each thing that may bound them.

    On a machine that was measured `besides_s` is what layers cost beside arithmetic, `passed_s` what goes number by
    number, both part of `seconds`.
    """

    tokens: int
    seconds: float
    compute_s: float
    memory_s: float
    besides_s: float = 0.0
    passed_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else math.inf

    @property
    def bound_by(self) -> str:
        """What takes longest."""
        if self.besides_s > max(self.compute_s, self.memory_s):
            return "what layers cost beside arithmetic"
        return "compute" if self.compute_s >= self.memory_s else "bandwidth"


@dataclass(frozen=True)
class Work:
    """A model, its parameters and a device, about which phases are asked."""

    config: ModelConfig
    weights: Sequence[Weight]
    device: Device

    def decode(self, plan: InferencePlan) -> Phase:
        """One further token for each of `batch` texts of `context` tokens."""
        step = replace(next_token(self.config, max(1, plan.context)), source=plan.source)
        flops = forward(self.config, self.weights, step)
        size = self._size(plan)
        cache = kv_cache(self.config, plan.caches)
        held = float(cache.bytes(batch=plan.batch, context=plan.context, source=plan.source))
        read = size * self._met(step, plan.batch) + held
        found = self._bound(plan.batch, plan.batch * flops.seen, read, plan.dtype)
        pace = self.device.pace
        if pace is None:
            return found
        seconds = self._multiplied(pace.linear, plan.dtype, step, plan.batch)
        seconds += held / self.device.bandwidth
        return self._added(found, seconds, "decode", plan.dtype)

    def prefill(self, plan: InferencePlan) -> Phase:
        """Reading `batch` prompts of `context` tokens; by an encoder-decoder they are sources."""
        whole = reading(self.config, plan.context if self.config.encoder is None else plan.source)
        length = max(whole.new, whole.source)
        tokens = plan.batch * length
        flops = forward(self.config, self.weights, whole)
        size = self._size(plan)
        moved = plan.batch * least_bytes(self.config.encoder or self.config, length, bytes_per_weight(plan.computes))
        moved += size * self._met(whole, plan.batch)
        found = self._bound(tokens, plan.batch * flops.seen, moved, plan.dtype)
        pace = self.device.pace
        if pace is None:
            return found
        seconds = self._multiplied(pace.linear, plan.dtype, whole, plan.batch)
        seconds += self._looked(pace.attention, plan.dtype, whole, plan.batch)
        passed = READ * self._made(whole, Run(plan.batch, length, plan.computes))
        curves = plan.batch * _bent_in(self.config, whole)
        passing = passed / pace.passes + curves / pace.functions["forward"]
        return self._added(found, seconds, "prefill", plan.dtype, passing=passing)

    def train(self, run: Run, *, micro_batches: int = 1, recompute: str = "none", optimizer: str = "adamw") -> Phase:
        """One optimizer step over `micro_batches` passes; blocks may be computed again on the way back."""
        found = self._passes(run, micro_batches, recompute)
        if optimizer != "muon":
            return found
        dtype = "bfloat16" if run.precision == "bfloat16" else "float32"
        bound = moving = muon_flops(self.weights) / self.device.peak(dtype)
        if self.device.pace is not None:
            rates = self.device.pace.orthogonal
            moving = sum(
                n * orthogonal_flops(short, long) / rate_at(rates, dtype, short, long)
                for short, long, n in moved(self.weights)
            )
        return replace(found, seconds=found.seconds + moving, compute_s=found.compute_s + bound)

    def _passes(self, run: Run, micro_batches: int, recompute: str) -> Phase:
        """Forward and backward, and AdamW's pass over its numbers."""
        total, tokens = sum(w.size for w in self.weights), run.tokens * micro_batches
        source = run.length if self.config.encoder is not None else 0
        whole, blocks = Pass(run.length, source=source), Pass(run.length, logits=0, source=source)
        flops, again = forward(self.config, self.weights, whole), Flops(0.0, 0.0, 0.0)
        if recompute == "block":  # selective: products and attention are kept
            again = forward(self.config, self.weights, blocks)
        rows = run.rows * micro_batches
        logits = 8.0 * 4 * tokens * self.config.need_vocab()  # log-softmax, its gradient, products read and write them
        kept = (TOUCHED + (recompute != "none")) * micro_batches * self._kept(run)
        moved = kept + logits + ADAMW_BYTES * total + 3.0 * run.size * total * micro_batches
        found = self._bound(tokens, rows * (3 * flops.seen + again.seen), moved, run.precision)
        pace = self.device.pace
        if pace is None:
            return found
        seconds = 0.0
        for passed, times in ((whole, 3), (blocks, recompute == "block")):
            seconds += times * self._multiplied(pace.trained, run.precision, passed, run.rows)
            seconds += (times > 0) * self._looked(pace.attention, run.precision, passed, run.rows)
        seconds += 2 * self._looked(pace.attention_back, run.precision, whole, run.rows)
        seconds *= micro_batches
        passing = (kept + logits) / pace.passes + ADAMW_BYTES * total / self.device.bandwidth
        curves = tokens * (bent(self.config) + self.config.need_vocab())  # those of the logits are softmax's
        passing += curves * sum(1 / rate for rate in pace.functions.values())
        passing += (recompute != "none") * tokens * bent(self.config) / pace.functions["forward"]
        return self._added(found, seconds, "training", run.precision, passing=passing, times=micro_batches)

    def _multiplied(self, rates: Rates, dtype: str, step: Pass, rows: int) -> float:
        """Seconds that the products of one pass of `rows` rows take."""
        total = 0.0
        for p in products(self.config, self.weights, step):
            total += rows * p.flops / rate_at(rates, dtype, p.width, rows * p.rows)
        return total

    def _looked(self, rates: Rates, dtype: str, step: Pass, rows: int) -> float:
        """Seconds that attention, or its gradient's half, takes in one pass of `rows` rows."""
        return sum(
            rows * look.seen / rate_at(rates, dtype, look.d_head, look.queries) for look in looks(self.config, step)
        )

    def _bound(self, tokens: int, flops: float, moved: float, dtype: str) -> Phase:
        compute, memory = flops / self.device.peak(dtype), moved / self.device.bandwidth
        return Phase(tokens, max(compute, memory), compute, memory)

    def _added(
        self, bound: Phase, seconds: float, phase: str, dtype: str, *, passing: float = 0.0, times: int = 1
    ) -> Phase:
        """The sum of what was measured, each as many times as whole models take it, in place of the bound."""
        pace = self.device.pace
        assert pace is not None
        encodes = self.config.encoder is not None and phase != "decode"
        layers = sum(stack.n_layers for stack in _stacks(self.config)[: 1 + encodes])
        whole, passed = (_of(by.get(phase, {}), dtype, none=1.0) for by in (pace.whole, pace.passed))
        besides = whole * times * layers * _of(pace.per_layer.get(phase, {}), dtype, none=0.0)
        passing *= passed
        total = whole * seconds + passing + besides
        return Phase(bound.tokens, total, bound.compute_s, bound.memory_s, besides, passing)

    def _size(self, plan: InferencePlan) -> float:
        """Bytes of a number of the weights; in a file of several types, on average."""
        return bytes_per_weight(plan.dtype) if plan.stored is None else plan.stored / sum(w.size for w in self.weights)

    def _met(self, step: Pass, batch: int) -> float:
        """Numbers of the weights that `batch` rows of a pass read: of experts, those that some token visits."""
        total = 0.0
        for w in self.weights:
            looked_up = w.rows == "none" and w.part == "experts"  # biases of experts, as many as their maps
            rows = batch * rows_of(replace(w, rows="token") if looked_up else w, step)
            total += w.size * (1.0 - (1.0 - w.share) ** rows if rows else 0.0)
        tied = self.config.head.tied
        return total + (self.config.need_vocab() * (self.config.embed.width or self.config.d_model) if tied else 0)

    def _made(self, step: Pass, run: Run) -> float:
        """Bytes that sublayers make while a prompt is read: an encoder of the source, the decoder of its own tokens."""
        n = 0 if self.config.encoder is None else self.config.encoder.n_layers
        read, begun = (layers_kept(self.config, self.weights, r) for r in (run, replace(run, length=step.new)))
        return sum(sub.kept for layer in [*read[:n], *begun[n:]] for sub in layer)

    def _kept(self, run: Run) -> float:
        """Bytes that sublayers make in a forward pass: what training would keep."""
        return sum(sub.kept for layer in layers_kept(self.config, self.weights, run) for sub in layer)


def bent(config: ModelConfig) -> float:
    """Numbers per token that go through an activation function; in parts of a user's own, those of their `d_ff`."""
    return sum(map(_bent, _stacks(config)))


def _bent_in(config: ModelConfig, step: Pass) -> float:
    """The same in one pass: an encoder meets the source, the decoder its own tokens."""
    return sum(n * _bent(stack) for stack, n in zip(_stacks(config), (step.new, step.source), strict=False))


def _bent(stack: StackConfig) -> float:
    total = 0.0
    for ffn in (block.ffn for block in stack.layers()):
        met = ffn.n_active if isinstance(ffn, MoEConfig) else 1
        total += met * getattr(ffn, "d_ff", 0) + (getattr(ffn, "d_ff_shared", 0) or 0)
    return total


def _stacks(config: ModelConfig) -> list[StackConfig]:
    """The decoder, or the only stack, and an encoder."""
    return [config] if config.encoder is None else [config, config.encoder]


def rate_at(rates: Rates, dtype: str, width: float, length: float) -> float:
    """FLOP/s at a width and a length (rows of a product, tokens): between those measured, by their logarithms."""
    by_width = rates.get(dtype) or rates.get("bfloat16") or rates["float32"]
    return _between({w: _between(by_length, length) for w, by_length in by_width.items()}, width)


def _between(points: Mapping[int, float], x: float) -> float:
    """The value at x of what was measured at some points; beyond them, at the nearest."""
    known = sorted(points.items())
    if x <= known[0][0]:
        return known[0][1]
    for (low, before), (high, after) in itertools.pairwise(known):
        if x <= high:
            share = math.log(x / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(before) + share * math.log(after))
    return known[-1][1]


def _of(by_type: Mapping[str, float], dtype: str, *, none: float | None = None) -> float:
    """The figure of a type, else of the next best."""
    for name in (dtype, "bfloat16", "float32"):
        if name in by_type:
            return by_type[name]
    assert none is not None, "a measurement has float32"
    return none
