"""Peak memory of generation on one device: weights, cache, and what a chunk of a prompt or a token takes in passing.

Weights and cache: Pope et al. 2022, arXiv:2211.05102, section 2.1; what passes is counted tensor by tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.model import BlockConfig, ModelConfig, StackConfig
from onehop.config.position import AlibiConfig, RopeConfig, T5Config
from onehop.cost.activations import INDEX, TILES_BEAT_A_MASK, TILES_BEAT_PLAIN, WIDE, tile_of
from onehop.cost.flops import slots
from onehop.cost.kv_cache import kv_cache
from onehop.cost.memory import MARGIN
from onehop.cost.numbers import PLAIN, bytes_per_weight
from onehop.cost.weights import Weight, turning_width

CHUNK = 2048  # tokens of prompts that are read at once (`generate/engine.py`)
BY_LENGTH = ("dynamic", "longrope")  # rope scalings whose angles depend on the text's length (`parts/rope_scaling.py`)


@dataclass(frozen=True)
class Inference:
    """Bytes at the peak of generation, by what they are for; they add up to `live`.

    `prepared` are copies of the linear maps in the layout that a CPU multiplies fastest; they stand beside, as does
    `margin`, what an allocator cannot use.
    """

    weights: float
    kv_cache: float
    working: float
    prepared: float = 0.0
    missing: list[str] = field(default_factory=list)

    @property
    def live(self) -> float:
        """Bytes of live tensors at the peak."""
        return self.weights + self.kv_cache + self.working

    @property
    def margin(self) -> float:
        """Bytes that an allocator may waste."""
        return MARGIN * self.live

    @property
    def total(self) -> float:
        """All of them."""
        return self.live + self.prepared + self.margin


@dataclass(frozen=True)
class InferencePlan:
    """What decides inference's memory beside the model. `prompt` None: the context is read as one prompt, in chunks."""

    batch: int = 1
    context: int = 1
    prompt: int | None = None
    dtype: str = "bfloat16"
    cache_dtype: str | None = None
    source: int = 0
    prepares: bool = False  # whether a second copy of the linear maps is kept (`parts/linear.py`)
    stored: float | None = None  # bytes of all weights where a file says them, whatever `dtype` is

    @property
    def computes(self) -> str:
        """The type in which activations are: that of the weights, or bfloat16 where these are packed more tightly."""
        return self.dtype if self.dtype in PLAIN and self.dtype != "float8" else "bfloat16"

    @property
    def caches(self) -> str:
        """The type of what the cache holds: the one that was asked for, or that of the activations."""
        return self.cache_dtype or self.computes


def weight_bytes(weights: Sequence[Weight], dtype: str) -> float:
    """Bytes of weights in `dtype`; where that is a quantised type, vectors stay in float32, as GGUF files have them."""
    size = bytes_per_weight(dtype)
    small = size if size >= 2 else WIDE
    return sum(w.size * (size if len(w.shape) > 1 else small) for w in weights)


def inference(config: ModelConfig, weights: Sequence[Weight], plan: InferencePlan) -> Inference:
    """The peak while `batch` texts grow to `context` tokens."""
    size = bytes_per_weight(plan.computes)
    cache = kv_cache(config, plan.caches)
    held = cache.bytes(batch=plan.batch, context=plan.context, source=plan.source)
    if config.encoder is None:
        reading = _reading(config, config, plan, plan.context if plan.prompt is None else plan.prompt)
    else:  # the source is read before there is a cache, and its hidden states while the decoder begins
        states = size * plan.batch * plan.source * config.d_model
        reading = max(_reading(config, config.encoder, plan, plan.source) - held, states)
    stepping = 2 * size * plan.batch * config.need_vocab()  # the last logits and the next
    stored = weight_bytes(weights, plan.dtype) if plan.stored is None else plan.stored
    maps = sum(w.size for w in weights if w.rows != "none" and len(w.shape) == 2 and w.part != "router")
    maps += config.need_vocab() * (config.embed.width or config.d_model) if config.head.tied else 0
    prepared = size * maps if plan.prepares else 0.0
    return Inference(stored, held, max(reading, stepping), prepared, cache.missing)


def _by_length(config: ModelConfig) -> bool:
    """Whether a prompt is read whole: its angles depend on its length."""
    positions = (block.attention.position for block in config.blocks)
    return any(isinstance(p, RopeConfig) and p.scaling is not None and p.scaling.kind in BY_LENGTH for p in positions)


def _reading(config: ModelConfig, stack: StackConfig, plan: InferencePlan, prompt: int) -> float:
    """Bytes that reading `prompt` tokens takes beside what is kept: an encoder reads them at once, others in chunks."""
    size, rows = bytes_per_weight(plan.computes), plan.batch
    whole = stack is not config or config.both_ways or _by_length(config)
    columns = prompt if whole else min(prompt, max(1, CHUNK // rows))
    found = max(_chunk(config.d_model, stack, rows, part, size) for part in _chunks(prompt, columns))
    return found + _tables(stack, rows, columns, prompt) + 2.0 * INDEX * rows * prompt  # tokens, and their places


class Chunk(NamedTuple):
    """A run of a prompt's tokens that is read at once, and the keys that are there then."""

    new: int
    keys: int


def _chunks(prompt: int, columns: int) -> list[Chunk]:
    """Those of a prompt's chunks that may take most: the first, the last whole one, and what is left."""
    whole, left = divmod(prompt, columns)
    found = [Chunk(columns, columns)] if whole else []
    if whole > 1:
        found.append(Chunk(columns, whole * columns))
    return [*found, Chunk(left, prompt)] if left else found


def _chunk(d: int, stack: StackConfig, rows: int, part: Chunk, size: float) -> float:
    """Bytes that reading a chunk takes."""
    found = 0.0
    for block in {block.name: block for block in stack.layers()}.values():
        wide = size * rows * part.new * _widest(d, block, size)
        found = max(found, wide, _by_tiles(d, block.attention, rows, part, size))
    return found


def _by_tiles(d: int, a: AttentionConfig, rows: int, part: Chunk, size: float) -> float:
    """Bytes while scores are computed tile by tile (`parts/score_tiled.py`), beside what attention has made by then.

    In float32: scaled queries, the same in runs, and the sums that the output is taken from.
    """
    keys = part.keys if a.window is None else min(part.keys, part.new + slots(a, part.keys))
    if not _tiled(a, part.new, keys):
        return 0.0
    q, kv, out = a.n_heads * a.d_head, float(a.n_kv_heads * a.d_head), a.n_heads * a.d_head
    made, again = q + 2 * kv, 0.0
    if isinstance(a, LatentConfig):
        turning, out = turning_width(a), a.n_heads * a.d_value
        made = 2 * q + a.n_heads * turning + 2 * (a.d_latent + turning)
        again = 2.0 * kv + a.n_kv_heads * (a.d_value - turning)  # keys and values, made of all latents
        kv = (a.d_latent + turning) / 2  # what the cache holds
    per_token = size * (3 * d + made + out) + WIDE * (2 * q + out + 3 * a.n_heads)
    height, width = tile_of(part.new, rows * a.n_heads)
    width = min(width, keys)
    copies = WIDE * rows * width * a.n_kv_heads * (a.d_head + out // a.n_heads)
    if a.window is not None:  # a ring's keys and the new ones are laid side by side, with a mask for each row
        again += 2 * kv
        copies += (1 + WIDE) * rows * height * width
    scores = WIDE * rows * a.n_heads * height * width * (1 + (a.softcap is not None))
    return rows * (part.new * per_token + size * keys * again) + copies + scores


def _tiled(a: AttentionConfig, new: int, keys: int) -> bool:
    """Whether tiles are quicker than a mask laid out, or than the definition (`parts/score.py`)."""
    if type(a) not in (AttentionConfig, LatentConfig) or a.score is not None:
        return False
    if a.softcap is not None or a.sinks or isinstance(a.position, T5Config):
        return new * keys > TILES_BEAT_PLAIN
    masked = keys > new or isinstance(a.position, AlibiConfig) or (a.window is not None and a.window < keys)
    return masked and new * keys > TILES_BEAT_A_MASK


def _widest(d: int, block: BlockConfig, size: float) -> float:
    """Numbers per token that are alive at once in the widest place of a block's forward pass.

    The embedded tokens, the block's input and its norm are always there, and behind the attention its sum.
    """
    return max(3 * d + _attention(d, block.attention, size), 4 * d + _ffn(d, block.ffn))


def _attention(d: int, a: AttentionConfig, size: float) -> float:
    q, kv = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    if isinstance(a, LatentConfig):
        turning, width = turning_width(a), max(a.d_head, a.d_value)
        down = (a.d_latent_q or 0) + a.d_latent + turning
        made = a.n_kv_heads * (a.d_head - turning + a.d_value)
        narrower = (a.n_heads + a.n_kv_heads) * (a.d_head < width) + a.n_kv_heads * (a.d_value < width)
        alike = width * narrower  # filled up with zeros
        return down + a.d_latent + 2 * q + made + kv + alike + a.n_heads * width
    turned = 3 if size >= WIDE else 8  # copies while dims are turned, in float32
    if isinstance(a.position, RopeConfig):
        return q + 2 * kv + max(turned * q, q + turned * kv)
    return q + 2 * kv + q + d


def _ffn(d: int, ffn: object) -> float:
    d_ff: int = getattr(ffn, "d_ff", 0)
    gated = getattr(ffn, "kind", "") == "gated" or getattr(ffn, "expert", "") == "gated"
    inner = d_ff * (4 if gated else 2)
    k: int | None = getattr(ffn, "n_active", None)
    if k is None:
        return inner
    return k * (d + inner + 12) + 3 * getattr(ffn, "n_experts", 0)


def _tables(stack: StackConfig, rows: int, columns: int, prompt: int) -> float:
    """Bytes of angles, and of masks and biases that are laid out."""
    found = {(b.attention.position, b.attention.d_head) for b in stack.layers()}
    total = sum(2.0 * WIDE * columns * (p.width or d) for p, d in found if isinstance(p, RopeConfig))
    rings = {b.attention for b in stack.layers() if b.attention.window is not None and b.attention.window < prompt}
    for keys in {columns + slots(a, prompt) for a in rings}:
        total += rows * columns * keys if columns * keys <= TILES_BEAT_A_MASK else 0  # tiles lay out no mask
    biased = [b.attention.n_heads for b in stack.layers() if b.attention.position.kind == "alibi"]
    if biased and columns**2 <= TILES_BEAT_A_MASK:
        total += WIDE * max(biased) * columns**2
    return total
