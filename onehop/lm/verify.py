"""Is this checkpoint whole, and does every path give what the plain definition gives, here and on this machine?"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from onehop.lm import check_files, check_kernels, check_text, check_theirs, checks, positions
from onehop.lm.language_model import LanguageModel
from onehop.lm.probe import Finding, Probe, skipped
from onehop.model.compiler import no_compiler
from onehop.weights.memory import free_bytes

N_PASSES = 30  # passes over a text, in the cost of the whole: the checks' own, and those of the truth
SECONDS, SECONDS_COMPILED = 5.0, 15.0  # what does not grow with the model; and for each kind of layer
N_DECODED = 3 * checks.DECODED


@dataclass(frozen=True)
class Check:
    """One comparison: the worst difference found, what is allowed there (in units of `unit`), and why so much.

    passed None: there was nothing to compare, and `note` says why not. where: the first activation over what is
    allowed or, where none is, the one that comes nearest to it.
    """

    name: str
    passed: bool | None
    worst: float | None
    tolerance: float | None
    unit: str
    where: str
    reason: str
    seconds: float
    note: str


@dataclass(frozen=True)
class Cost:
    """What the checks will take: seconds, and bytes beside the model."""

    seconds: float
    nbytes: int


def verify(
    lm: LanguageModel,
    *,
    seed: int = 0,
    length: int | None = None,
    report: Callable[[Check], None] = lambda check: None,
    compile: bool = False,
) -> list[Check]:
    """Every check that applies to this model, on random tokens drawn from `seed`; `report` hears each as it is done.

    length: tokens of the longest text, no more than the model's own; None: 48, or a few more than the widest window
    where that is at most 1024. compile: torch.compile too, where there is a compiler; it takes up to a minute. What
    differs by more than rounding explains is not passed; so is a check that ends in an error.
    """
    found = []
    with torch.no_grad():
        for name, run in _checks(lm, Probe(lm, length=length, seed=seed), compile):
            check = _timed(name, run)
            report(check)
            found.append(check)
    return found


def cost(lm: LanguageModel, *, length: int | None = None, compile: bool = False) -> Cost:
    """An estimate, from one pass over the text and one over a single token, of what `verify` will take."""
    probe, model = Probe(lm, length=length), lm.model
    with torch.no_grad():
        model(*probe.inputs(0, 1))  # the first pass of all is no measure
        text, token = (_seconds(partial(model, *probe.inputs(0, n))) for n in (probe.length, 1))
    layers = [sum(p.numel() for p in layer.parameters()) for layer in model.layers]
    weights = sum(p.numel() for p in model.parameters())
    kept = 10 * sum(1 for _ in model.config.layers()) * probe.length * model.config.d_model * 8
    wide = _wide_fits(lm)
    # The prepared weights, and the model read again; then either everything in float32 twice, or theirs.
    copies = 2 * probe.dtype.itemsize + (8 if wide else 4 if lm.family is not None else 0)
    nbytes = max(layers) * 8 + kept + weights * copies
    kinds = 0 if not compile or no_compiler(probe.device) else len(model.config.blocks)
    fixed = SECONDS + SECONDS_COMPILED * kinds
    return Cost(fixed + (1 + wide) * (N_PASSES * text + N_DECODED * token), nbytes)


Named = tuple[str, Callable[[], Finding]]


def _checks(lm: LanguageModel, probe: Probe, compile: bool) -> Iterator[Named]:
    yield "weights complete and finite", partial(check_files.complete, lm)
    yield "weights = those of the files, bit for bit", partial(check_files.as_in_the_files, lm)
    yield "tokenizer: hard texts and back", partial(check_text.round_trip, lm)
    yield "tokenizer = transformers", partial(check_text.theirs, lm)
    yield "tokenizer and chat template", partial(check_text.lint, lm)
    yield "positions = the papers' formulas", partial(positions.formula, lm)
    yield "kernels in float32, at the edge of each window", partial(check_kernels.at_the_edges, probe)
    yield from _paths(probe, "")
    if compile:
        yield "compiled = plain", partial(check_kernels.compiled, probe)
    else:
        yield "compiled = plain", partial(skipped, _not_compiled(probe))
    if _is_half(probe.dtype):
        yield from _wide_paths(lm, probe)
    yield "saved and loaded again, bit for bit", partial(check_files.saved, probe)
    if lm.family is not None:
        yield "written in its own layout and read again, bit for bit", partial(check_files.exported, probe)
        yield "transformers, layer by layer, in float32", partial(check_theirs.transformers, probe)


def _paths(probe: Probe, suffix: str) -> Iterator[Named]:
    """Every way through the model."""
    for kernel in ("tiled", "fused", "auto"):
        yield f"kernel {kernel} = plain{suffix}", partial(checks.kernel, probe, kernel)
    yield f"prepared weights = plain weights{suffix}", partial(checks.prepared, probe)  # used from here on
    for kind in ("growing", "fixed", "ring"):
        yield f"decoding from a {kind} cache = recomputing{suffix}", partial(checks.cache, probe, kind)
    yield f"a batch = each text alone{suffix}", partial(checks.batch, probe)
    yield f"a ragged batch = each text alone{suffix}", partial(checks.ragged, probe)
    yield f"documents packed in a row = each alone{suffix}", partial(checks.packed_documents, probe)


def _wide_paths(lm: LanguageModel, probe: Probe) -> Iterator[Named]:
    """The same paths with the same weights in float32, in which 16 bits of rounding hide nothing."""
    if not _wide_fits(lm):
        yield "the same in float32", partial(skipped, "a float32 copy of the weights does not fit into free memory")
        return
    wide = LanguageModel(
        copy.deepcopy(lm.model).float(), lm.tokenizer, start_id=lm.start_id, kernel=lm.kernel, prepare=lm.prepare
    )
    yield from _paths(Probe(wide, length=probe.length), ", in float32")


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.itemsize == 2


def _wide_fits(lm: LanguageModel) -> bool:
    """Whether a float32 copy of 16-bit weights fits beside them, twice over (one is prepared for multiplying)."""
    weights = list(lm.model.parameters())
    free = free_bytes(weights[0].device)
    return _is_half(weights[0].dtype) and (free is None or 8 * sum(p.numel() for p in weights) <= free)


def _not_compiled(probe: Probe) -> str:
    return no_compiler(probe.device) or "not asked for (compile)"


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _timed(name: str, run: Callable[[], Finding]) -> Check:
    start = time.perf_counter()
    try:
        found = run()
    except Exception as error:  # noqa: BLE001 whatever goes wrong, the next check is still worth knowing
        found = Finding(float("inf"), note=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    allowed = None if found.worst is None else found.tolerance
    return Check(name, found.passed, found.worst, allowed, found.unit, found.where, found.reason, seconds, found.note)
