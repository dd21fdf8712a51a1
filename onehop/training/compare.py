"""Recipes compared: the same seeds for all, equal budgets, and whether their differences are more than luck."""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from onehop.base.errors import ConfigError, DataError, Diverged
from onehop.base.files import atomic_write
from onehop.base.units import human_time
from onehop.config.origins import leaves
from onehop.config.recipe import Recipe
from onehop.config.sweep import Entry
from onehop.data.shards import Shards
from onehop.training.budget import EQUALS, Evaluated, Facts, allotted, evaluated, look_at
from onehop.training.checkpoints import Checkpoints
from onehop.training.compare_plot import draw
from onehop.training.compare_table import Line, Result, lines, run_folder, write_table
from onehop.training.folder import nothing_left
from onehop.training.hold import Hold
from onehop.training.report import Display, read_metrics
from onehop.training.schedule import parts_before
from onehop.training.session import Session
from onehop.training.trainer import Trainer
from onehop.training.unchanged import FREE

FILE = "comparison.json"
MOST_SEEDS = 10_000  # a list of them is made
MAY_CHANGE = FREE - {"train.steps", "train.eval_rows"}


@dataclass(frozen=True)
class Terms:
    """What was settled before the first run. By name of the entry: recipes as keys, steps, parameters, FLOPs."""

    equal: str
    unit: str
    whole: bool  # all of the validation text is evaluated
    eval_rows: int | None
    recipes: dict[str, dict[str, Any]]
    steps: dict[str, int]
    n_params: dict[str, int]
    flops: dict[str, float | None]  # of a micro-batch


@dataclass
class Comparison:
    """A comparison as far as it has come; `results` in the order in which they were trained."""

    out: Path
    terms: Terms
    seeds: list[int]
    results: list[Result] = field(default_factory=list)
    stopped_by: int | None = None  # the signal that interrupted it

    def lines(self) -> list[Line]:
        """The table: one line for each recipe, those after the first beside the first."""
        return lines(list(self.terms.recipes), self.results, self.terms.n_params, self.terms.steps)

    def as_dict(self) -> dict[str, Any]:
        """All of it, as comparison.json has it."""
        table = [{**asdict(line), "verdict": line.verdict} for line in self.lines()]
        runs = [asdict(result) for result in self.results]
        return {"terms": asdict(self.terms), "seeds": self.seeds, "runs": runs, "table": table}


def compare(
    entries: Sequence[Entry],
    *,
    out: str | Path,
    seeds: int = 3,
    equal: str = "tokens",
    resume: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Train every entry from the same seeds with equal tokens, FLOPs or time, and compare their validation losses.

    The first entry sets the budget (its `train.steps`) and the first seed. Each run has a folder in `out`, and is one
    that `train` would have made. resume: go on with what is in `out`; finished runs are not run again, and more seeds
    may be asked for. A run that diverges is noted, and the others go on. Ctrl-C saves the run that it stops.
    """
    _check(entries, seeds, equal)
    out = Path(out)
    with Display(console if console is not None else Console(quiet=True)) as display:
        with ExitStack() as here:
            with nothing_left(out):
                here.enter_context(Hold(out))
                found = _resumed(out, entries, equal, display) if resume else _begun(out, entries, equal, display)
            first = entries[0].recipe.train.seed
            found.seeds = list(range(first, first + seeds))
            _run(found, entries, display)
    how = {"equal": equal, "unit": found.terms.unit}
    write_table(found.out, found.lines(), **how)
    draw(found.out, found.lines(), found.results, **how)
    return found


def _check(entries: Sequence[Entry], seeds: int, equal: str) -> None:
    if equal not in EQUALS:
        raise ConfigError(f"--equal {equal} does not exist. Use {', '.join(EQUALS)}.")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: a comparison needs at least 1, and 3 to tell a difference from luck.")
    if seeds > MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds} is more than {MOST_SEEDS} runs of each recipe. Use fewer: 3 to 10 will do.")
    folders = [run_folder(entry.name, 0) for entry in entries]
    if (twice := next((name for name in folders if folders.count(name) > 1), None)) is not None:
        raise ConfigError(f"two runs would have the same folder, {twice}. Write the values in another way.")


def _begun(out: Path, entries: Sequence[Entry], equal: str, display: Display) -> Comparison:
    """A comparison whose terms are settled: what each recipe costs, and how many steps it gets."""
    if (out / FILE).exists() or (out / "metrics.jsonl").exists():
        kind = "comparison" if (out / FILE).exists() else "run"
        raise ConfigError(f"{out} holds a {kind} already. Go on with --resume, or set out=OTHER.")
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(".look-*"):  # of a call that was killed
        shutil.rmtree(left)
    facts = []
    for entry in entries:
        display.phase(f"looking at {entry.name}")
        facts.append(look_at(entry.recipe, out / "data", timed=equal == "time", notify=display.note))
    names = [entry.name for entry in entries]
    how, steps = evaluated(names, facts), allotted(entries, facts, equal)
    found = Comparison(out, _terms(entries, facts, how, equal, steps), [])
    _say_terms(found.terms, entries, display)
    return found


def _terms(entries: Sequence[Entry], facts: Sequence[Facts], how: Evaluated, equal: str, steps: list[int]) -> Terms:
    names = [entry.name for entry in entries]
    return Terms(
        equal,
        how.unit,
        how.whole,
        max(f.n_held for f in facts) if how.whole else None,
        {entry.name: _keys(entry.recipe) for entry in entries},
        dict(zip(names, steps, strict=True)),
        {name: f.n_params for name, f in zip(names, facts, strict=True)},
        {name: f.flops for name, f in zip(names, facts, strict=True)},
    )


def _say_terms(terms: Terms, entries: Sequence[Entry], display: Display) -> None:
    for entry in entries:
        steps, train = terms.steps[entry.name], entry.recipe.train
        if steps != train.steps:
            display.say(f"{entry.name}: {steps} steps instead of {train.steps}, for equal {terms.equal}")
        if 0 < steps <= train.warmup:
            display.say(f"{entry.name}: train.warmup={train.warmup} is as long as its {steps} steps")
    if terms.whole:
        display.say("evaluations read the whole validation text: the recipes cut it into rows in different ways")


def _resumed(out: Path, entries: Sequence[Entry], equal: str, display: Display) -> Comparison:
    """A comparison as it was left. Raises ConfigError where it was another one."""
    if not (out / FILE).is_file():
        raise ConfigError(f"{out} holds no comparison to resume. Start without --resume.")
    try:
        saved = json.loads((out / FILE).read_text())
        found = Comparison(out, Terms(**saved["terms"]), saved["seeds"], [Result(**run) for run in saved["runs"]])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{out / FILE} is damaged. Restore it, or set out=OTHER.") from error
    for what in _changes(found.terms, entries, equal):
        raise ConfigError(f"{out} holds another comparison: {what}. Ask for the same, or set out=OTHER.")
    found.results = [result for result in found.results if (out / result.folder / "metrics.jsonl").is_file()]
    display.say(f"{len(found.results)} finished runs are in {out} already")
    return found


def _changes(terms: Terms, entries: Sequence[Entry], equal: str) -> list[str]:
    if terms.equal != equal:
        return [f"it has --equal {terms.equal}"]
    if list(terms.recipes) != [entry.name for entry in entries]:
        return [f"it is of {', '.join(terms.recipes)}"]
    out = []
    for entry in entries:
        saved, now = terms.recipes[entry.name], _keys(entry.recipe)
        differ = [key for key in {**saved, **now} if saved.get(key) != now.get(key) and key not in MAY_CHANGE]
        out += [f"of {entry.name}, {key} was {saved.get(key)} and is {now.get(key)}" for key in differ]
    return out


def _keys(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON holds it."""
    found: dict[str, Any] = json.loads(json.dumps(leaves(recipe)))
    return found


def _run(found: Comparison, entries: Sequence[Entry], display: Display) -> None:
    """All runs that are missing, seed by seed, so that pairs are complete early."""
    done = {(result.name, result.seed) for result in found.results}
    missing = [(entry, seed) for seed in found.seeds for entry in entries if (entry.name, seed) not in done]
    _keep(found)
    for i, (entry, seed) in enumerate(missing, start=1):
        result, stopped_by = _one(found, entry, seed, display)
        if stopped_by is not None:
            found.stopped_by = stopped_by
            display.say(f"stopped {result.folder} after {result.steps} steps and saved it; go on with --resume")
            return
        found.results.append(result)
        _keep(found)
        said = result.diverged or f"{result.score:.4f} {found.terms.unit}"
        display.say(f"{i} of {len(missing)}: {result.folder}: {said}, {human_time(result.seconds)}")


def _keep(found: Comparison) -> None:
    atomic_write(found.out / FILE, json.dumps(found.as_dict(), indent=1) + "\n")


def _one(found: Comparison, entry: Entry, seed: int, display: Display) -> tuple[Result, int | None]:
    """One run -> its numbers, and the signal that interrupted it, if one did."""
    terms, folder = found.terms, found.out / run_folder(entry.name, seed)
    update: dict[str, Any] = {"seed": seed, "steps": terms.steps[entry.name]}
    update |= {} if terms.eval_rows is None else {"eval_rows": terms.eval_rows}
    train = entry.recipe.train.model_copy(update=update)
    recipe = entry.recipe.model_copy(update={"out": str(folder), "train": train})
    begun = bool(Checkpoints(folder, keep=1).newest_first())
    shown = _OneOf(display, folder.name)
    known: dict[str, Any] = {"name": entry.name, "seed": seed, "folder": folder.name}
    try:
        options: dict[str, Any] = {"resume": begun, "fresh": folder.exists() and not begun}
        with ExitStack() as until:
            trainer = Trainer(recipe, data=found.out / "data", notify=shown.note, until=until, **options)
            run = Session(trainer, shown).run()
    except Diverged as error:
        return _diverged(folder, str(error), known), None
    p, loss, held = trainer.progress, run.val_loss, trainer.data.validation
    score = loss
    if terms.unit == "bits per byte" and loss is not None:
        assert isinstance(held, Shards)  # of a mixture, `evaluated` has refused it
        score = held.bits_per_byte(loss)
    flops = terms.flops[entry.name]
    spent = None if flops is None else flops * parts_before(p.step, train)
    numbers: dict[str, Any] = {"steps": p.step, "tokens": p.tokens, "seconds": p.seconds}
    return Result(**known, **numbers, flops=spent, val_loss=loss, score=score, diverged=None), run.stopped_by


def _diverged(folder: Path, why: str, known: dict[str, Any]) -> Result:
    """How far a run came that diverged."""
    rows = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    steps, tokens = (rows[-1]["step"], rows[-1]["tokens"]) if rows else (0, 0)
    told: dict[str, Any] = {"flops": None, "val_loss": None, "score": None, "diverged": why}
    return Result(**known, steps=steps, tokens=tokens, seconds=0.0, **told)


class _OneOf(Display):
    """What one run of several shows: the bar of the whole moves, and nothing is said that stays."""

    def __init__(self, whole: Display, name: str):
        self.whole, self.name, self.moving = whole, name, whole.moving

    def phase(self, what: str, *, total: int | None = None, done: int = 0) -> None:
        """Begin a part of the run."""
        self.whole.phase(f"{self.name}: {what}", total=total, done=done)

    def note(self, text: str, *, done: int | None = None) -> None:
        """Say how far the run is."""
        self.whole.note(text, done=done)

    @property
    def room(self) -> int:
        """As much as the whole has."""
        return self.whole.room

    def say(self, text: str, **style: Any) -> None:
        """The run's own lines are in its report.html."""
