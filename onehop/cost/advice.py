"""Whether a model fits a device, the cheapest changes after which it does, and what fits at all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from onehop.cost.devices import Device
from onehop.cost.planned import Asked, Plan

DTYPES = ("bfloat16", "q8_0", "q6_k", "q4_k")
CONTEXTS = (2048, 8192, 32768, 131072, 1 << 20)


@dataclass(frozen=True)
class Step:
    """One change on the way, what is then needed, and whether that fits."""

    change: str
    needed: float
    fits: bool


@dataclass(frozen=True)
class Advice:
    """Bytes that are needed and there, and, where they do not suffice, changes in order, each on top of those before.

    An empty list where it fits as it is; where it can fit, none without which it would. `possible`: whether the last
    change makes it fit.
    """

    needed: float
    room: float
    steps: list[Step]

    @property
    def fits(self) -> bool:
        """Whether it fits as it is."""
        return self.needed <= self.room

    @property
    def possible(self) -> bool:
        """Whether it fits, at last."""
        return self.fits or (bool(self.steps) and self.steps[-1].fits)


def for_inference(plan: Plan, asked: Asked, device: Device) -> Advice:
    """What costs least first: no quality (fewer texts), little (eight bits), context, then more quality (four bits)."""

    def needed(wish: Asked) -> float:
        return plan.needed("inference", wish, device)

    return _until_it_fits(asked, needed, _served_steps(plan, asked, device.memory, needed), device.memory)


def for_training(plan: Plan, asked: Asked, device: Device) -> Advice:
    """What costs least first: nothing (a chunked loss, smaller passes), time (recompute), then shorter rows."""

    def needed(wish: Asked) -> float:
        return plan.needed("training", wish, device)

    return _until_it_fits(asked, needed, _trained_steps(plan, asked), device.memory)


class Change(NamedTuple):
    """A change by its name. Of those of one `key` the later goes further, and takes the place of the earlier."""

    key: str
    name: str
    make: Callable[[Asked], Asked]


Needed = Callable[[Asked], float]


def _until_it_fits(asked: Asked, needed: Needed, changes: Iterator[Change], room: float) -> Advice:
    first = now = needed(asked)
    taken: list[Change] = []
    wish = asked
    for change in changes:
        if now <= room:
            break
        then = change.make(wish)
        less = needed(then)
        if less < 0.99 * now:  # a change that does next to nothing is no advice
            wish, now = then, less
            taken.append(change)
    if now <= room:
        taken = _only_needed(asked, needed, taken, room)
    steps: list[Step] = []
    for change in taken:
        asked = change.make(asked)
        now = needed(asked)
        steps.append(Step(change.name, now, now <= room))
    return Advice(first, room, steps)


def _only_needed(asked: Asked, needed: Needed, taken: list[Change], room: float) -> list[Change]:
    """The changes without those that a later one makes needless, each going no further than it must; dearest first."""

    def fits(changes: list[Change]) -> bool:
        wish = asked
        for change in changes:
            wish = change.make(wish)
        return needed(wish) <= room

    left = [change for i, change in enumerate(taken) if all(change.key != later.key for later in taken[i + 1 :])]
    for last in reversed(left):
        at = left.index(last)
        milder = [[], *([change] for change in taken if change.key == last.key)]
        left = next((tried for one in milder if fits(tried := [*left[:at], *one, *left[at + 1 :]])), left)
    return left


def _served_steps(plan: Plan, asked: Asked, room: float, needed: Callable[[Asked], float]) -> Iterator[Change]:
    if asked.batch > 1:
        yield Change("batch", "one text at a time (--batch 1)", lambda a: replace(a, batch=1))
    if asked.dtype in ("float32", "float64"):
        yield Change("dtype", "weights in bfloat16 (--dtype bfloat16)", lambda a: replace(a, dtype="bfloat16"))
    yield Change("dtype", "weights in 8 bits (--dtype q8_0)", lambda a: _packed(a, "q8_0"))
    yield Change("cache_dtype", "the cache in 8 bits (--cache-dtype int8)", lambda a: replace(a, cache_dtype="int8"))
    context = plan.context(asked)
    while context > 2048:
        context //= 2
        name = f"a context of {context} (--context {context})"
        yield Change("context", name, lambda a, n=context: replace(a, context=n))  # type: ignore[misc]
    yield Change("dtype", "weights in 4 bits (--dtype q4_k)", lambda a: _packed(a, "q4_k"))


def _packed(asked: Asked, dtype: str) -> Asked:
    """Weights in blocks; what was to be kept in the cache in 16 bits stays as it was."""
    wide = asked.dtype in ("float32", "float64")
    return replace(asked, dtype=dtype, cache_dtype=asked.cache_dtype if wide else asked.caches, stored=None)


def _trained_steps(plan: Plan, asked: Asked) -> Iterator[Change]:
    if asked.precision == "float32":
        yield Change(
            "precision", "products in bfloat16 (train.precision=bfloat16)", lambda a: replace(a, precision="bfloat16")
        )
    if asked.loss_chunk is None:
        yield Change(
            "loss_chunk",
            "logits of 1024 tokens at a time (train.loss_chunk=1024)",
            lambda a: replace(a, loss_chunk=1024),
        )
    rows = asked.train_rows
    while rows > 1:
        rows //= 2
        yield Change(
            "train_rows",
            f"{rows} rows per pass (train.micro_batch={rows})",
            lambda a, n=rows: replace(a, train_rows=n, micro_batches=asked.micro_batches * asked.train_rows // n),  # type: ignore[misc]
        )
    if asked.recompute == "none":
        yield Change(
            "recompute",
            "norms and activations computed again in backward (train.recompute=selective)",
            lambda a: replace(a, recompute="selective"),
        )
    if asked.recompute != "block":
        yield Change(
            "recompute",
            "blocks computed again in backward (train.recompute=block)",
            lambda a: replace(a, recompute="block"),
        )
    if asked.optimizer == "adamw":
        yield Change(
            "optimizer", "one moment instead of two (train.optimizer=muon)", lambda a: replace(a, optimizer="muon")
        )
    context = plan.train_context(asked)
    while context > 512:
        context //= 2
        name = f"rows of {context} tokens (train.context={context})"
        yield Change("train_context", name, lambda a, n=context: replace(a, train_context=n))  # type: ignore[misc]


@dataclass(frozen=True)
class Room:
    """How many texts of a context fit beside weights of a type; 0: none."""

    dtype: str
    weights: float
    texts: dict[int, int]
    longest: int | None  # context of one text; None: any


def what_fits(plan: Plan, asked: Asked, device: Device) -> list[Room]:
    """Types of weights by contexts: the number of texts that fit at once."""
    wishes = {dtype: replace(asked, dtype=dtype, stored=None) for dtype in dict.fromkeys((asked.dtype, *DTYPES))}
    if asked.stored is not None:
        wishes = {"the file's": asked, **wishes}
    return [_room(plan, name, wish, device) for name, wish in wishes.items()]


def _room(plan: Plan, name: str, wish: Asked, device: Device) -> Room:
    on_cpu = device.kind == "cpu"

    def fit(batch: int, context: int) -> bool:
        chosen = replace(wish, batch=batch, context=context)
        return plan.needed("inference", chosen, device) <= device.memory

    texts = {context: _most(lambda n, c=context: fit(n, c)) for context in _contexts(plan, wish)}  # type: ignore[misc]
    most = LIMIT if plan.longest is None else plan.longest
    longest = _most(lambda n: n <= most and fit(1, n))
    weights = plan.inference_memory(wish, on_cpu=on_cpu).weights
    return Room(name, weights, texts, None if longest >= LIMIT else longest)


LIMIT = 1 << 24  # texts, or tokens, beyond which nobody counts


def _contexts(plan: Plan, asked: Asked) -> list[int]:
    """Those that are common and that the model can read, and the one that is asked about."""
    common = {context for context in CONTEXTS if plan.longest is None or context <= plan.longest}
    return sorted({*common, plan.context(asked)})


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, 0 where 1 does not; numbers from LIMIT on are all one."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < LIMIT and fits(high):
        low, high = high, 2 * high
    if high >= LIMIT:
        return LIMIT
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
