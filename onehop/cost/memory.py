"""Peak memory of a training step on one device: live tensor bytes, and what lies around them.

Peak means the most bytes of tensors that are alive at once, as PyTorch can track them. The backward pass is followed
sublayer by sublayer: gradients appear while what was kept goes.

What stays between steps: weights, gradients and the optimizer's moments (ZeRO, Rajbhandari et al. 2019,
arXiv:1910.02054, section 3.1). What a step keeps: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, here tensor
by tensor as this code keeps them; blocks that are computed again: Chen et al. 2016, arXiv:1604.06174, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onehop.config.model import ModelConfig
from onehop.cost.activations import TILES_BEAT_A_MASK, WIDE, Run, Sublayer, sublayers
from onehop.cost.muon import hidden_matrices, muon_working
from onehop.cost.weights import Weight

# Ids from which on a CPU the loss keeps its softmax and makes the gradient of it. Measured on two cores with AVX2 only,
# forward and backward: 2432 x 1280 float32 1.3 to 1.6 times as fast, 2048 x 32000 1.5 to 1.7 (bfloat16 logits 1.2 and
# 1.4); at 512 ids even, below slower.
SOFTMAX_IS_KEPT = 1024
MARGIN = 0.05  # of the tensors: what an allocator leaves unused between them


@dataclass(frozen=True)
class Training:
    """Bytes at the peak of a training step, by what they are for; they add up to `live`.

    `margin` is for what an allocator cannot use, and stands beside.
    """

    weights: float
    optimizer: float
    gradients: float
    activations: float
    logits: float
    working: float
    peak_at: str
    blocks: list[float]  # activations of each layer
    missing: list[str] = field(default_factory=list)

    @property
    def live(self) -> float:
        """Bytes of live tensors at the peak."""
        return self.weights + self.optimizer + self.gradients + self.activations + self.logits + self.working

    @property
    def margin(self) -> float:
        """Bytes that an allocator may waste."""
        return MARGIN * self.live

    @property
    def total(self) -> float:
        """Live bytes and margin."""
        return self.live + self.margin


@dataclass(frozen=True)
class TrainingPlan:
    """What decides a step's memory beside the model."""

    run: Run
    micro_batches: int = 1
    optimizer: str = "adamw"
    recompute: str = "none"  # block: keep each block's input only; selective: and what products and attention give
    loss_chunk: int | None = None  # tokens whose logits are there at once; None: all
    average: bool = False  # a moving average of the weights beside them


def training(config: ModelConfig, weights: Sequence[Weight], plan: TrainingPlan) -> Training:
    """The peak of one optimizer step."""
    run, total = plan.run, sum(w.size for w in weights)
    layers = list(layers_kept(config, weights, run))
    blocks = [sum(s.kept for s in layer) for layer in layers]
    stream = WIDE * config.d_model * run.tokens
    held = [_held(layer, stream, plan.recompute) for layer in layers]  # between forward and backward
    kept = sum(held)
    always, head_reads, logits = _embedded(config, run), _head_reads(config, run), _logits(config, plan)
    before = WIDE * total if plan.micro_batches > 1 else 0.0
    moments: list[tuple[str, float, float, float, float]] = []  # name, gradients, activations, logits, working
    moments.append(("the loss", before, kept + always + head_reads, logits, 0.0))
    grads, left = WIDE * float(_head_size(config, weights)), kept + always
    streams = {"none": 0, "layer": 2}.get(config.final_norm.kind, 3)  # layer norms have a gradient of one step
    moments.append(("the gradient of the final norm", max(before, grads), left, 0.0, streams * stream))
    for layer, now in zip(reversed(layers), reversed(held), strict=True):
        left -= now
        here = max(now, sum(sub.kept for sub in layer))  # all of the block, computed again where it was not kept
        for sub in reversed(layer):
            alive = left + here - sub.given  # whoever read that has made its gradient
            moments.append(("the gradient of a block", max(before, grads), alive, 0.0, sub.transient + stream))
            grads += WIDE * sub.parameters
            here = max(0.0, here - sub.kept)
            moments.append(("the gradient of a block", max(before, grads), left + here, 0.0, sub.stacked + stream))
    # A table that is read at both ends has two gradients, and then their sum.
    twice = 2.0 * WIDE * config.need_vocab() * (config.embed.width or config.d_model) if config.head.tied else 0.0
    moments.append(("the gradient of the embedding", WIDE * float(total), stream, 0.0, twice))
    moments.append(("the optimizer's step", WIDE * float(total), 0.0, 0.0, _working(weights, plan)))
    at, gradients, activations, logit_bytes, working = max(moments, key=lambda m: sum(m[1:]))
    return Training(
        weights=WIDE * float(total),
        optimizer=_state(weights, plan),
        gradients=gradients,
        activations=activations,
        logits=logit_bytes,
        working=working,
        peak_at=at,
        blocks=blocks,
        missing=list(dict.fromkeys(s.missing for layer in layers for s in layer if s.missing)),
    )


def _head_size(config: ModelConfig, weights: Sequence[Weight]) -> int:
    """Parameters whose gradients are made before that of the last block."""
    found = sum(w.size for w in weights if w.layer is None and w.name.startswith(("head.", "final_norm")))
    return found + (config.need_vocab() * (config.embed.width or config.d_model) if config.head.tied else 0)


def _held(layer: Sequence[Sublayer], stream: float, recompute: str) -> float:
    """Bytes of a block that stay until its gradient is made."""
    if recompute == "none":
        return sum(sub.kept for sub in layer)
    return stream + (sum(sub.products for sub in layer) if recompute == "selective" else 0.0)


def layers_kept(config: ModelConfig, weights: Sequence[Weight], run: Run) -> list[list[Sublayer]]:
    """The sublayers of each layer, those of an encoder first; equal blocks are worked out once."""
    out: list[list[Sublayer]] = []
    run = replace(run, drops_weights=config.dropout.attention > 0, drops_stream=config.dropout.residual > 0)
    for stack, encoder in ((config.encoder, True), (config, False)):
        done: dict[str, list[Sublayer]] = {}
        for i, block in enumerate(stack.layers() if stack is not None else ()):
            if block.name not in done:
                own = [w for w in weights if w.layer == i and w.encoder == encoder]
                names = [w.name.removeprefix("encoder.") for w in own]
                renamed = [Weight(n, w.shape, w.part, w.rows) for n, w in zip(names, own, strict=True)]
                done[block.name] = list(sublayers(config.d_model, block, renamed, run))
            out.append(done[block.name])
    return out


def _embedded(config: ModelConfig, run: Run) -> float:
    """What is there until the embedding's gradient: the embedded tokens, and tables that layers share."""
    return WIDE * config.d_model * run.tokens + _shared_tables(config, run)


def _head_reads(config: ModelConfig, run: Run) -> float:
    """What the final norm and the head keep, without the logits: gone once their gradients are made."""
    total = 0.0
    if config.final_norm.kind != "none":
        total += (0 if run.cast else WIDE * config.d_model * run.tokens) + WIDE * run.tokens
    if run.cast:
        total += run.size * config.d_model * run.tokens
        total += run.size * config.need_vocab() * (config.embed.width or config.d_model)
    return total


def _shared_tables(config: ModelConfig, run: Run) -> float:
    """Angles, masks and biases, made once for all layers that share them."""
    angles = {
        (b.attention.position, b.attention.d_head) for b in config.layers() if b.attention.position.kind == "rope"
    }
    rows = run.rows if run.packed else 1  # where rows hold several documents, each has places and masks of its own
    total = sum(2.0 * WIDE * rows * run.length * (getattr(p, "width", None) or d) for p, d in angles)
    windows = {b.attention.window for b in config.layers()}
    masked = [w for w in windows if run.packed or (w is not None and w < run.length)]
    if run.length**2 <= TILES_BEAT_A_MASK:
        total += len(masked) * rows * run.length**2
        biased = [b.attention.n_heads for b in config.layers() if b.attention.position.kind == "alibi"]
        total += WIDE * rows * run.length**2 * max(biased, default=0)
    return total


def _logits(config: ModelConfig, plan: TrainingPlan) -> float:
    """Logits at the loss: in float32 their softmax and its gradient, and in 16 bits, if they come so, that once more.

    Of few ids, and elsewhere than on a CPU, PyTorch computes it, by three in float32. In chunks
    (`training/surprise.py`) the gradients of the head and of the hidden states grow meanwhile, that of the head by a
    second one of its size and in float32 a third, their sum; by PyTorch's own function, in float32, beside two chunks.
    """
    run, vocab = plan.run, config.need_vocab()
    each = 3.0 * WIDE
    if run.on_cpu and vocab >= SOFTMAX_IS_KEPT:
        each = 2.0 * WIDE + (run.size if run.cast else 0)
    each += run.size if config.head.softcap is not None else 0  # the hyperbolic tangents
    if plan.loss_chunk is None or plan.loss_chunk >= run.tokens:
        return each * run.tokens * vocab
    width = config.embed.width or config.d_model
    grows = run.size * float(vocab * width)
    hidden = float((WIDE + run.size * run.cast) * run.tokens * width)  # in 16 bits too, where it comes so
    if run.cast or config.head.softcap is not None:
        added = (2.0 if run.cast else 3.0) * grows
        return hidden + max(added, grows + each * plan.loss_chunk * vocab)
    return hidden + grows + WIDE * 2.0 * plan.loss_chunk * vocab


def _state(weights: Sequence[Weight], plan: TrainingPlan) -> float:
    """Bytes of an optimizer's state, two moments per parameter, with Muon one for hidden matrices; of an average."""
    total = sum(w.size for w in weights)
    by_muon = sum(w.size for w in hidden_matrices(weights)) if plan.optimizer == "muon" else 0
    return WIDE * float(2 * (total - by_muon) + by_muon + plan.average * total)


def _working(weights: Sequence[Weight], plan: TrainingPlan) -> float:
    """Bytes that the step itself takes: nothing for a fused AdamW."""
    return muon_working(weights, 2 if plan.run.precision == "bfloat16" else WIDE) if plan.optimizer == "muon" else 0.0
