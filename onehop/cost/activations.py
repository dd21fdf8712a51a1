"""What training keeps of a block for its gradient, and what that takes while it is made: bytes, tensor by tensor.

Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, does this for one block of 16 bits; here the tensors are those
that onehop's parts keep, in float32 or under autocast, so that a prediction can be held to live bytes. On a CPU maps of
one input are one product over stacked weights (`parts/linear.py`), and the stacked copy is kept too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onehop.config.attention import AttentionConfig, LatentConfig
from onehop.config.ffn import GatedConfig, MoEConfig, PlainConfig
from onehop.config.model import BlockConfig
from onehop.config.norm import LayerNormConfig, NormConfig, RMSNormConfig
from onehop.config.position import AlibiConfig, PositionConfig, RopeConfig, T5Config
from onehop.cost.own import own_count
from onehop.cost.weights import Weight, by_product, turning_width

WIDE, INDEX = 4, 8  # bytes of a float32 number, of an int64 one
# Under autocast on a CPU heads below this width are computed in float32, and the gradient of others for so many queries
# at a time (`parts/score_half.py`).
NARROW, RUN = 64, 128
# Scores of one head from which tiles take over on a CPU (`parts/score.py`).
TILES_BEAT_PLAIN, TILES_BEAT_A_MASK = 64 * 64, 384 * 384
SHORT, WORK = 128 * 128, 2**23  # up to which, and from which work on, a CPU keeps the weights (`parts/score_short.py`)


@dataclass(frozen=True)
class Run:
    """How one pass is computed: rows of `length` tokens each, precision, and where."""

    rows: int
    length: int
    precision: str = "float32"
    on_cpu: bool = True
    packed: bool = False  # rows hold several documents, which do not see each other
    drops_weights: bool = False  # dropout on attention's weights
    drops_stream: bool = False  # dropout on what a sublayer gives

    @property
    def tokens(self) -> int:
        """Tokens of the pass."""
        return self.rows * self.length

    @property
    def size(self) -> int:
        """Bytes of a number that products give."""
        return 4 if self.precision == "float32" else 2

    @property
    def cast(self) -> bool:
        """Whether weights and activations are cast for products (autocast)."""
        return self.size != WIDE


@dataclass(frozen=True)
class Sublayer:
    """One sublayer of one layer: bytes kept until its gradient, bytes beside them while it is made, its parameters.

    products: those of what is kept that products and attention give. stacked: bytes of weights that are one product,
    whose gradient is one tensor before it is cut. given: the part of what is kept that the next sublayer reads.
    """

    kept: float
    products: float
    transient: float
    stacked: float
    parameters: int
    given: float
    missing: str | None = None


def sublayers(d: int, block: BlockConfig, weights: list[Weight], run: Run) -> Iterator[Sublayer]:
    """The sublayers of a block in the order of the forward pass; `weights` are those of this layer."""
    for name in ("attention", "cross", "ffn"):
        if name == "cross" and block.cross is None:
            continue
        own = [w for w in weights if w.name.split(".")[2].split("_")[0] == name or f".{name}." in w.name]
        inner = _attention(d, getattr(block, name), run) if name != "ffn" else _ffn(d, block.ffn, run)
        kept, transient, missing = inner
        stacked = _stacked(own) if run.on_cpu else 0.0
        matrices = [w.size for w in own if w.rows != "none" and w.part != "router"]
        kept += _around(d, block, name, run) + (run.size * sum(matrices) if run.cast else stacked)
        routed = name == "ffn" and isinstance(block.ffn, MoEConfig)  # whose transient has the gradients of weights
        largest = 0 if routed else WIDE * max(matrices, default=0)
        products = run.tokens * _products(d, block, name, run)
        given = WIDE * d * run.tokens if _gives(block, name) else 0.0
        yield Sublayer(kept, products, transient + largest, stacked, sum(w.size for w in own), given, missing)


def _products(d: int, block: BlockConfig, name: str, run: Run) -> float:
    """Bytes per token that a sublayer's products and its attention give."""
    s, out = run.size, float(run.size * d)
    if name == "ffn":
        ffn: Any = block.ffn
        maps = 2 if type(ffn) is GatedConfig or getattr(ffn, "expert", "") == "gated" else 1
        if isinstance(ffn, MoEConfig):
            shared = ffn.d_ff_shared or 0
            return (
                WIDE * ffn.n_experts + s * (ffn.n_active * (maps * ffn.d_ff + d) + maps * shared) + out * bool(shared)
            )
        return s * maps * getattr(ffn, "d_ff", 0) + out
    a = getattr(block, name)
    q, kv = a.n_heads * a.d_head, a.n_kv_heads * a.d_head
    kernel = kernel_of(a, run)
    mixed = (WIDE if kernel in ("narrow", "short") else s) * q + _row_sums(a, kernel, run)
    if kernel == "short":
        mixed += WIDE * a.n_heads * run.length  # the scores
    if kernel in ("plain", "tiled"):  # no product of PyTorch's attention: tiles are one step of their own
        mixed = 0.0
    if isinstance(a, LatentConfig):
        made = a.n_kv_heads * (a.d_head - turning_width(a) + a.d_value)
        return s * ((a.d_latent_q or 0) + a.d_latent + turning_width(a) + q + made) + mixed + out
    return s * (q + 2 * kv) + mixed + out


def _around(d: int, block: BlockConfig, name: str, run: Run) -> float:
    """The input as the maps read it, the norms' statistics, and the stream behind the sublayer."""
    stream = WIDE * d
    normed = block.norm_in and block.norm.kind != "none"
    reads_attentions = name == "ffn" and block.parallel == "one norm"
    total = 0.0
    if normed and not reads_attentions:
        total += _statistics(block.norm, d) + (0 if run.cast else stream)
    routed = name == "ffn" and isinstance(block.ffn, MoEConfig)
    if run.cast and routed:
        total += stream if normed else 0  # the router reads float32, and experts cast what they gather
    elif run.cast:
        total += run.size * d * (1 if run.on_cpu else _maps(block, name))
    if run.drops_stream:
        total += run.size * d  # which numbers stay
    if block.norm_out == "inside":
        total += WIDE * d + _statistics(block.norm, d)
    if block.norm_out == "outside":
        total += stream + _statistics(block.norm, d)  # the sum, beside its norm
    return (total + stream * _gives(block, name)) * run.tokens


def _gives(block: BlockConfig, name: str) -> bool:
    """Whether the sum behind a sublayer is kept: in parallel, nobody keeps the one behind the attention."""
    return block.parallel == "no" or name == "ffn"


def _statistics(norm: NormConfig, width: int) -> float:
    """Bytes that a norm keeps per vector, beside its input."""
    if type(norm) is LayerNormConfig:
        return 2 * WIDE
    if type(norm) is RMSNormConfig:
        return WIDE
    return WIDE * float(own_count(norm, "saved", width) or 0)


def _maps(block: BlockConfig, name: str) -> int:
    """Maps that read a sublayer's input, each with a cast copy of its own where they are not one product."""
    if name == "ffn":
        return 2 if isinstance(block.ffn, GatedConfig) else 1
    return 2 if isinstance(getattr(block, name), LatentConfig) else 3 if name == "attention" else 1


def _stacked(weights: list[Weight]) -> float:
    """Bytes, in float32, of the weights that are stacked for one product, because they read one input."""
    groups = by_product([w for w in weights if w.rows != "none" and w.part != "experts"])
    return WIDE * float(sum(w.size for maps in groups if len(maps) > 1 for w in maps))


Inner = tuple[float, float, str | None]  # kept, transient, what a part of one's own leaves out


def _attention(d: int, a: AttentionConfig, run: Run) -> Inner:
    if type(a) is LatentConfig:
        return _latent(a, run)
    if type(a) is not AttentionConfig:
        saved = own_count(a, "saved", d)
        missing = None if saved is not None else f"attention {a.kind}: what training keeps"
        return WIDE * float(saved or 0) * run.tokens, 0.0, missing
    q, kv, s = a.n_heads * a.d_head, a.n_kv_heads * a.d_head, run.size
    kernel = kernel_of(a, run)
    new = 0.0  # queries and keys that are no longer the projection's own
    statistics = 0.0
    if a.clip is not None:
        new += s * (q + 2 * kv)
    if a.qk_norm is not None:
        by_head = a.qk_norm.span == "head"
        statistics += sum(_statistics(a.qk_norm.norm, w) * (h if by_head else 1)
                          for h, w in ((a.n_heads, a.d_head), (a.n_kv_heads, a.d_head)))  # fmt: skip
        statistics += WIDE * (q + kv) if run.cast else 0  # the norm's input in float32
    moved = type(a.position) is not T5Config and not _still(a.position)
    if kernel == "short":
        kept: float = WIDE * (q + 2 * kv) + s * q  # all three laid out by head, and the output
        if a.qk_norm is not None and not run.cast:
            kept += s * (q + 2 * kv)  # the projection, of which the norms read a part
    elif run.cast and kernel == "narrow":
        kept = WIDE * (q + 2 * kv + q) + s * q  # float copies, the output and its cast
    else:
        kept = s * (q + 2 * kv) + s * q  # the projection, of which the values are a view, and the output
        if (moved or a.qk_norm is not None) and kernel != "plain":  # plain lays out all three anew
            kept += s * (q + kv)
    kept += _row_sums(a, kernel, run)
    kept += _scores(a, kernel, run) / run.tokens
    return (kept + new + statistics) * run.tokens, _gradient(a, kernel, run), None


def _still(position: PositionConfig) -> bool:
    """Whether a scheme leaves queries and keys as they are."""
    return not isinstance(position, RopeConfig)


def kernel_of(a: AttentionConfig, run: Run) -> str:
    """How the scores are computed, as `parts/score.py` chooses: fused, masked, tiled or plain.

    masked: fused, with a mask laid out; narrow: fused in float32 under autocast on a CPU; short: its products by
    themselves, in float32 on a CPU.
    """
    scores = run.length**2
    windowed = run.packed or (a.window is not None and a.window < run.length)
    biased = isinstance(a.position, AlibiConfig)
    beyond = a.softcap is not None or a.sinks or isinstance(a.position, T5Config)
    if a.score is not None:
        return "plain"
    if beyond or run.drops_weights:
        return "plain" if scores <= TILES_BEAT_PLAIN else "tiled"
    if (windowed or biased) and scores > TILES_BEAT_A_MASK:
        return "tiled"
    width = _width(a)
    widened = not run.cast or width < NARROW or biased  # computed in float32
    pays = not widened or run.rows * a.n_heads * scores * width >= WORK
    if run.on_cpu and scores <= SHORT and pays and not biased:
        return "short"
    if run.cast and run.on_cpu and widened:
        return "narrow"
    return "masked" if windowed or biased else "fused"


def _width(a: AttentionConfig) -> int:
    """The width in which a kernel has queries, keys and values: one for all."""
    return max(a.d_head, a.d_value) if isinstance(a, LatentConfig) else a.d_head


def _row_sums(a: AttentionConfig, kernel: str, run: Run) -> float:
    """Bytes per token of the softmax's log-sums, one for each head; half precision on a CPU makes them anew."""
    anew = run.cast and run.on_cpu and kernel in ("fused", "masked")
    return 0.0 if kernel in ("plain", "short") or anew else WIDE * a.n_heads


def _scores(a: AttentionConfig, kernel: str, run: Run) -> float:
    """Bytes of what has the size of the scores."""
    square = float(run.length**2)
    if kernel == "plain":  # weights before and behind the mask, what a cap bends, and which weights dropout keeps
        return run.rows * a.n_heads * square * (WIDE * (2 + (a.softcap is not None)) + run.drops_weights)
    if kernel == "short":  # the weights
        return run.rows * a.n_heads * square * WIDE
    windowed = run.packed or (a.window is not None and a.window < run.length)
    halved = run.cast and run.on_cpu and kernel == "masked"  # keeps the mask as it is
    if windowed and kernel in ("masked", "narrow") and not halved and not isinstance(a.position, AlibiConfig):
        return WIDE * square * (run.rows if run.packed else 1)  # PyTorch's kernel keeps the mask as numbers
    return 0.0


def _gradient(a: AttentionConfig, kernel: str, run: Run) -> float:
    """Bytes that the gradient of the scores takes beside what is kept."""
    q, kv = a.n_heads * _width(a), a.n_kv_heads * _width(a)
    made = WIDE * (q + 2 * kv) * run.tokens
    if kernel == "short":  # the output's gradient in float32 too; under autocast one of three is there twice
        made = (run.size * (q + 2 * kv) + (WIDE * kv if run.cast else 0)) * run.tokens
        return made + WIDE * q * run.tokens + _scores(a, kernel, run)
    if kernel in ("fused", "masked") and run.cast and run.on_cpu:
        made = (run.size * (4 * q + 3 * kv) + WIDE * 2 * kv) * run.tokens  # copies by head, and sums in float32
        return made + 3 * run.size * run.rows * a.n_heads * min(RUN, run.length) * run.length  # one run of queries
    if kernel != "tiled":
        return made
    rows, cols = tile_of(run.length, run.rows * a.n_heads)
    tile = WIDE * run.rows * a.n_heads * rows * min(cols, run.length)
    return made + WIDE * 5 * q * run.tokens + (3 if a.softcap is not None else 2) * tile


def tile_of(length: int, heads: int) -> tuple[int, int]:
    """Queries and keys of a tile (`parts/score_tiled.py`)."""
    rows, area = (128, 128 * 256) if heads <= 16 else (64, 64 * 128)
    rows = min(rows, length) or 1
    return rows, min(area // rows, 4096)


def _latent(a: LatentConfig, run: Run) -> Inner:
    turning, s = turning_width(a), run.size
    kv, values, out = a.n_kv_heads * a.d_head, a.n_kv_heads * a.d_value, a.n_heads * a.d_value
    narrow = a.d_latent_q or 0
    kept: float = s * (narrow + a.d_latent + turning)  # what is projected down
    kept += s * (narrow + a.d_latent)  # normalised
    if run.cast:
        kept += WIDE * (narrow + a.d_latent)
    kept += _statistics(a.norm, a.d_latent) * (2 if narrow else 1)
    width, kernel = _width(a), kernel_of(a, run)
    if kernel == "short":
        kept += WIDE * width * (a.n_heads + 2 * a.n_kv_heads)  # all three laid out by head
    elif kernel == "narrow":
        kept += WIDE * width * 2 * (a.n_heads + a.n_kv_heads)  # float copies, and the output
    else:
        kept += s * width * (a.n_heads + a.n_kv_heads)  # queries and keys, put together
        if a.d_value == a.d_head:
            kept += s * (kv - a.n_kv_heads * turning + values)  # made keys and values
        else:  # one width for the kernel, whose output is cut, and kept where its gradient reads it
            kept += s * width * (a.n_kv_heads + (0 if run.cast and run.on_cpu else a.n_heads))
    kept += s * out + _row_sums(a, kernel, run) + _scores(a, kernel, run) / run.tokens
    return kept * run.tokens, _gradient(a, kernel, run), None


def _ffn(d: int, ffn: Any, run: Run) -> Inner:
    n, s = run.tokens, run.size
    if type(ffn) is PlainConfig:
        return s * n * ffn.d_ff * _plain(ffn.activation), s * n * ffn.d_ff, None
    if type(ffn) is GatedConfig:
        return s * n * ffn.d_ff * _gated(ffn), s * n * 2 * ffn.d_ff, None
    if type(ffn) is MoEConfig:
        return _moe(d, ffn, run)
    saved = own_count(ffn, "saved", d)
    return WIDE * float(saved or 0) * n, 0.0, None if saved is not None else f"ffn {ffn.kind}: what training keeps"


def _plain(activation: str) -> float:
    """Tensors of the inner width that act(W1 x) keeps: its input and output, or one where one will do."""
    return {"relu": 1, "sigmoid": 1, "none": 1, "relu2": 2}.get(activation, 2)


def _gated(ffn: Any) -> float:
    """Tensors of the inner width that act(gate) ⊙ up keeps: both, the gate as it opens, the product."""
    more = {"none": -1, "relu2": 1}.get(ffn.activation, 0)
    if ffn.activation == "silu" and ffn.swish_gain != 1.0:
        more += 1
    if ffn.clamp is not None:
        more += 2
    if ffn.up_offset:
        more += 1
    return 4 + more


def _moe(d: int, ffn: MoEConfig, run: Run) -> Inner:
    """The router's scores, k visits of each token, and the shared expert; gradients of weights among the transient."""
    k, e, n, s = ffn.n_active, ffn.n_experts, run.tokens, run.size
    inner, maps, gathered = _expert(ffn, run)
    kept: float = (
        WIDE * (e + 1 + 2 * k) + 3 * INDEX * k
    )  # scores, their sum, weights; choices, their order and the way back
    kept += s * k * (gathered * d + inner * ffn.d_ff + d)
    transient = _visits_gradient(d, ffn, run)
    if ffn.d_ff_shared is not None:
        shared = s * (ffn.d_ff_shared * inner + d * (ffn.shared_gate + run.cast))
        kept += shared
        matrix = WIDE * float(d * ffn.d_ff_shared)
        first = s * n * (maps - 1) * ffn.d_ff_shared + matrix  # as a dense layer's; then what it kept is gone
        transient = max(first, transient + maps * matrix + (WIDE * d - shared) * n)
    return kept * n, transient, None


def _expert(ffn: MoEConfig, run: Run) -> tuple[float, int, int]:
    """Tensors of the inner width that an expert keeps, its matrices, and copies of its input: each map has its cast."""
    gated = ffn.expert == "gated"
    inner = _gated(ffn) if gated else _plain(ffn.activation)
    return inner, 3 if gated else 2, 2 if run.cast and gated else 1


def _visits_gradient(d: int, ffn: MoEConfig, run: Run) -> float:
    """Bytes while the gradient of the visits is made, beside all that the sublayer keeps, in its widest place.

    Those places are the weighted sum; the last matrices; the activation, when the experts' outputs are gone; the first
    matrices, when all of the inner width is gone too. Under autocast a matrix's cast copy goes with its gradient.
    """
    inner, maps, gathered = _expert(ffn, run)
    visits, size = ffn.n_active * run.tokens, run.size
    wide, out, hidden = float(WIDE * visits * d), float(size * visits * d), float(size * visits * ffn.d_ff)
    numbers = float(ffn.n_experts * d * ffn.d_ff)
    matrix, cast = WIDE * numbers, size * numbers if run.cast else 0.0
    summed = 2 * wide + (out if run.cast else 0)
    last = size * numbers + hidden
    opened = matrix - cast + (maps - 1) * hidden - out
    if run.cast:
        first = maps * (matrix - cast) + cast - inner * hidden - gathered * out + (maps - 2) * wide
    else:
        first = maps * matrix - (inner - 1) * hidden + (maps - 2) * out
    return max(summed, last, opened, first)
