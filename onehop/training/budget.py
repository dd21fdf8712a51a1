"""What a recipe costs, and how many steps of it spend what another one spends: tokens, FLOPs or seconds."""

import bisect
import math
import statistics
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from onehop.base.errors import ConfigError, Diverged
from onehop.config.origins import leaves
from onehop.config.recipe import Recipe, TrainConfig
from onehop.config.sweep import Entry
from onehop.cost.planned import Plan
from onehop.data.mixture import Mixture
from onehop.data.shards import Shards
from onehop.training.compiled import asked_for
from onehop.training.schedule import parts_before
from onehop.training.speed import counts
from onehop.training.trainer import Trainer

Equal = Literal["tokens", "flops", "time"]
EQUALS: tuple[str, ...] = get_args(Equal)
COUNTED = 32  # micro-batches whose targets are counted
SETTLING, TIMED, SECONDS = 2, 50, 2.0  # steps that are not timed, and those that are, at most
PROBE = 1 << 30  # steps of a recipe whose pace is measured: its end does not come
# Keys of the text that do not choose it: what stands in the validation text is the same whatever these say.
ENCODING = ("data.tokenizer", "data.vocab_size", "data.packing", "data.documents")


@dataclass(frozen=True)
class Facts:
    """What was found out about a recipe before it is trained. Costs are those of a micro-batch.

    tokens: targets, on average. flops: None where parts of the user's own do not tell theirs. seconds: None where
    they were not asked for. text, tokenizer, rows: what it is evaluated on.
    """

    n_params: int
    tokens: float
    flops: float | None
    seconds: float | None
    tokenizer: str
    text: tuple[Any, ...]  # the same text has the same, whatever the tokenizer
    encoded: tuple[Any, ...]  # the same text by the same tokenizer
    rows: tuple[Any, ...]
    n_held: int
    whole: bool  # all of it can be evaluated

    def cost(self, equal: str) -> float | None:
        """Of a micro-batch, in the unit that is made equal."""
        return {"tokens": self.tokens, "flops": self.flops, "time": self.seconds}[equal]


def look_at(recipe: Recipe, data: Path, *, timed: bool, notify: Callable[[str], None]) -> Facts:
    """Read the text, build the model, and see what they are; timed: take some steps to see how long they take."""
    train = recipe.train.model_copy(update={"steps": PROBE, "tensorboard": False, "wandb": "no"})
    with tempfile.TemporaryDirectory(dir=data.parent, prefix=".look-") as folder:
        probe = recipe.model_copy(update={"out": f"{folder}/out", "train": train})
        trainer = Trainer(probe, data=data, notify=notify)
        run = trainer.recipe.model_copy(update={"train": recipe.train})  # as long as it is, not as the probe is
        trainer.compile_loss(asked_for(run, trainer.device))
        seconds = _pace(trainer) if timed else None
        return _facts(trainer, seconds)


def _facts(t: Trainer, seconds: float | None) -> Facts:
    held, train, task = t.data.validation, t.recipe.train, t.recipe.task
    parts = held.parts if isinstance(held, Mixture) else (held,)
    plain = [part for part in parts if isinstance(part, Shards)]  # some tasks keep examples instead
    n_rows, plan = train.micro_batch or train.batch_size, Plan(t.recipe.model)
    known = counts(t.recipe) and not plan.flops(new=1).missing
    chosen = {k: v for k, v in leaves(t.recipe).items() if k.startswith("data.") and k not in ENCODING}
    return Facts(
        n_params=sum(p.numel() for p in t.model.parameters()),
        tokens=statistics.fmean(t.loader.batch(i).n_targets for i in range(COUNTED)),
        flops=plan.train_flops_per_token(t.context) * t.context * n_rows if known else None,
        seconds=seconds,
        tokenizer=t.tokenizer.fingerprint,
        text=(*((part.n_bytes, part.n_documents) for part in plain), repr(sorted(chosen.items()))),
        encoded=tuple((zlib.crc32(part.tokens.data), zlib.crc32(part.starts.data)) for part in plain)
        or (t.data.identity,),
        rows=(t.context, t.recipe.data.packing, train.eval_rows, repr(task)),
        n_held=sum(part.n_tokens for part in plain),
        whole=task.kind == "next" and len(parts) == len(plain) == 1,
    )


def _pace(t: Trainer) -> float:
    """Seconds of a micro-batch: the median over some steps, also where they diverge, as the run itself will tell."""
    found: list[float] = []
    before, began = t.progress, 0.0
    try:
        for p in (t.progress for _ in t.steps()):
            if p.step == SETTLING:
                began = p.seconds
            elif p.step > SETTLING:
                found.append((p.seconds - before.seconds) / (p.batches - before.batches))
                if len(found) >= TIMED or (len(found) >= 3 and p.seconds - began > SECONDS):
                    break
            before = p
    except Diverged:
        if not found:
            raise
    return statistics.median(found)


@dataclass(frozen=True)
class Evaluated:
    """What all entries are evaluated on, and in which unit. whole: all of the validation text, not some rows of it."""

    unit: Literal["nats per token", "bits per byte"]
    whole: bool


def evaluated(names: Sequence[str], facts: Sequence[Facts]) -> Evaluated:
    """How to compare them. Raises ConfigError where their validation texts differ."""
    first = facts[0]
    one_tokenizer = all(f.tokenizer == first.tokenizer for f in facts)
    for name, f in zip(names, facts, strict=True):
        same = f.encoded == first.encoded if one_tokenizer else f.text == first.text
        if not same:
            raise ConfigError(
                f"the validation texts of {names[0]} and {name} differ, so their losses cannot be compared. Give both "
                "the same text, data.validation and data.seed."
            )
    whole = not one_tokenizer or any(f.rows != first.rows for f in facts)
    if whole and not first.whole:
        raise ConfigError(
            "of a mixture, and of tasks other than next, other rows are evaluated with another task, tokenizer, "
            "train.context, data.packing or train.eval_rows, so losses cannot be compared. Give all recipes the same."
        )
    return Evaluated("nats per token" if one_tokenizer else "bits per byte", whole)


def allotted(entries: Sequence[Entry], facts: Sequence[Facts], equal: str) -> list[int]:
    """Steps of each entry that spend what the first entry of its share spends in its own steps."""
    budgets: dict[str, float] = {}
    found = []
    for entry, f in zip(entries, facts, strict=True):
        cost, train = f.cost(equal), entry.recipe.train
        if cost is None:
            raise ConfigError(
                f"--equal {equal}: {entry.name} has no count of FLOPs, having parts of your own that tell none, "
                "another task than next, or weights that do not learn. Use --equal tokens or time."
            )
        budget = budgets.setdefault(entry.share, parts_before(train.steps, train) * cost)
        steps = steps_for(budget / cost, train)
        if budget and not steps:
            raise ConfigError(
                f"--equal {equal}: a step of {entry.name} costs more than the whole run of the first recipe. "
                "Raise its train.steps."
            )
        found.append(steps)
    return found


def steps_for(n_parts: float, train: TrainConfig) -> int:
    """The number of steps whose micro-batches come nearest to `n_parts`."""
    most = range(math.ceil(n_parts) + 1)  # a step has at least one
    above = bisect.bisect_left(most, n_parts, key=lambda n: parts_before(n, train))
    below = max(above - 1, 0)
    return below if n_parts - parts_before(below, train) < parts_before(above, train) - n_parts else above
