"""Does every fast path give what the plain definition gives, on this machine and with this checkpoint?"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from onehop.lm import checks
from onehop.lm.checks import Finding, Probe
from onehop.lm.language_model import LanguageModel

LENGTH = 48  # tokens of the texts that are compared


@dataclass(frozen=True)
class Check:
    """One comparison: the worst difference found, and what is allowed, as shares of the largest logit, and why.

    passed None: there was nothing to compare, and `note` says why not.
    """

    name: str
    passed: bool | None
    worst: float | None
    tolerance: float | None
    reason: str
    seconds: float
    note: str


def verify(lm: LanguageModel, *, seed: int = 0, report: Callable[[Check], None] = lambda check: None) -> list[Check]:
    """Every check that applies to this model, on random tokens drawn from `seed`; `report` hears each as it is done.

    Compared are logits, unless a check says otherwise, in the model's own dtype. What differs by more than rounding
    explains is not passed; so is a check that ends in an error.
    """
    found = []
    with torch.inference_mode():
        probe = Probe(lm, length=LENGTH, seed=seed)
        for name, run in _checks(lm):
            check = _timed(name, run, probe)
            report(check)
            found.append(check)
    return found


def _checks(lm: LanguageModel) -> Iterator[tuple[str, Callable[[Probe], Finding]]]:
    for kernel in ("tiled", "fused", "auto"):
        yield f"kernel {kernel} = plain", partial(checks.kernel, name=kernel)
    yield "prepared weights = plain weights", checks.prepared  # and from here on they are used
    for kind in ("growing", "fixed", "ring"):
        yield f"decoding from a {kind} cache = recomputing", partial(checks.cache, kind=kind)
    yield "a ragged batch = each text alone", checks.ragged
    yield "documents packed in a row = each alone", checks.packed_documents
    yield "saved and loaded again, bit for bit", checks.saved
    if lm.family is not None:
        yield "written in its own layout and read again, bit for bit", checks.exported
        yield "transformers", checks.transformers


def _timed(name: str, run: Callable[[Probe], Finding], probe: Probe) -> Check:
    start = time.perf_counter()
    try:
        finding = run(probe)
    except Exception as error:  # noqa: BLE001 whatever goes wrong, the next check is still worth knowing
        finding = Finding(float("inf"), 0.0, "", f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    if finding.worst is None:
        return Check(name, None, None, None, "", seconds, finding.note)
    passed = finding.worst <= finding.tolerance  # false for NaN
    return Check(name, passed, finding.worst, finding.tolerance, finding.reason, seconds, finding.note)
