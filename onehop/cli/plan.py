"""onehop plan [MODEL]"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.text import Text

from onehop.base.errors import ConfigError, OnehopError
from onehop.base.units import human_bytes, human_count, human_flops
from onehop.cli import plan_options as o
from onehop.cli.common import Json, beside, check_png, machines, new_app, people
from onehop.cli.options import Parts
from onehop.cli.plan_budget import budget_flops, points_of
from onehop.cli.plan_modes import mode
from onehop.cli.plan_source import Source, source
from onehop.cli.plan_tables import (
    Say,
    seconds,
    sheet,
    show_advice,
    show_outcomes,
    show_plan,
    show_rooms,
    show_sweep,
    show_what_ifs,
)
from onehop.config.named import presets
from onehop.cost.advice import for_inference, for_training, what_fits
from onehop.cost.devices import DEVICES, Device, device, from_dict, to_dict
from onehop.cost.numbers import MOST
from onehop.cost.planned import Asked, Plan
from onehop.cost.scaling import DEFAULT, Law, for_budget, for_serving, law, spread
from onehop.cost.what_if import swept, what_ifs
from onehop.machine import kept
from onehop.machine.here import has_native_bf16, here

app = new_app()


@app.command()
def plan(
    model: o.Model = None,
    keys: o.Keys = None,
    context: o.Context = None,
    batch: o.Batch = None,
    dtype: o.DType = None,
    cache_dtype: o.CacheDType = None,
    device: o.DeviceName = None,
    tokens: o.Tokens = None,
    budget: o.Budget = None,
    mfu: o.Mfu = None,
    price: o.Price = None,
    serve: o.Serve = None,
    fit_law: o.FitLaw = None,
    sweep: o.Sweep = None,
    out: o.Out = None,
    what_if: o.WhatIf = False,
    what_fits: o.WhatFits = False,
    measure: o.Measure = False,
    parts: Parts = None,
    json: Json = False,
) -> int:
    """What a model costs before it is paid for: parameters, FLOPs, cache, memory, time, loss. Loads no weights."""
    asked = mode({name: value for name, value in locals().items() if name != "json"})
    keys = keys or []
    if asked == "measure":
        return _measure(json)
    if fit_law is not None:
        return _fit([*fit_law, *([model] if model else []), *keys], json)
    where = _where(device)
    if budget is not None:
        return _budget(budget, where, {"mfu": mfu, "price": price, "named": device}, serve, json)
    if model is None:
        return _machine(where, json)
    wish = {"context": context, "batch": batch, "dtype": dtype, "cache_dtype": cache_dtype, "tokens": tokens}
    question = Question(model, keys, parts or [], {k: v for k, v in wish.items() if v is not None}, where)
    if sweep is not None:
        return _sweep(sweep, question, Path("sweep.png" if out is None else out), json)
    return _plan(question, what_if=what_if, rooms=what_fits, json=json)


@dataclass(frozen=True)
class Question:
    """A model and what is asked of it, on one device."""

    model: str
    keys: Sequence[str]
    parts: Sequence[Path]
    given: dict[str, Any]
    where: Device

    def answer(self, *more: str, **wish: Any) -> tuple[Source, Asked]:
        """The model under its keys and `more`, and what is asked, with `wish`."""
        found = source(self.model, [*self.keys, *more], parts=self.parts)
        values: dict[str, Any] = {"dtype": found.dtype or "bfloat16", **found.trained}
        native = "bfloat16" in self.where.flops if self.where.flops else has_native_bf16()
        if not native:
            values.setdefault("precision", "float32")
        if found.stored is not None and "dtype" not in {**self.given, **wish}:
            values |= {"stored": found.stored, "loads": found.loads}
        return found, Asked(**{**values, **self.given, **wish})


def _where(name: str | None) -> Device:
    """The device that is asked about: one of the table, or this machine, with what was measured of it."""
    if name is not None:
        return device(name)
    measured = kept.load()
    if measured is not None:
        return from_dict(measured)
    found = here(cards=False)
    return Device("this machine", float(found.memory), 0.0, {}, f"{found.processor}, not measured", "cpu")


def _plan(question: Question, *, what_if: bool, rooms: bool, json: bool) -> int:
    found, asked = question.answer()
    one, where = Plan(found.config), question.where
    say = people(json).print
    if rooms:
        return _rooms(found, asked, where, json)
    notes = [*found.notes, *one.notes(asked)]
    if what_if:
        changes = what_ifs(found.config, asked, where)
        _say_notes(notes, say)
        show_what_ifs(changes, say)
        if json:
            machines({"notes": notes, "what_if": [{"name": row.name, **asdict(row.figures)} for row in changes]})
        return 0
    figures = one.as_dict(asked, device=where)
    served, trained = for_inference(one, asked, where), for_training(one, asked, where)
    if json:
        advice = {"inference": _steps(served), "training": _steps(trained)}
        machines({"model": found.name, "source": found.kind, "notes": notes, **figures, "advice": advice})
        return 0
    _say_notes(notes, say)
    show_plan(figures, found.name, say)
    say()
    show_advice(served, trained, where.name, say)
    if not where.flops:
        say(
            "no times: onehop plan --measure measures this machine once, --device H200 asks about another", markup=False
        )
    return 0


def _rooms(found: Source, asked: Asked, where: Device, json: bool) -> int:
    """How many texts fit."""
    fits, say = what_fits(Plan(found.config), asked, where), people(json).print
    _say_notes(found.notes, say)
    show_rooms(fits, where.name, where.memory, say)
    if max(fits[0].texts) > found.config.max_len:
        say(f"  the model was made for texts of {found.config.max_len:,} tokens at most", markup=False)
    if json:
        fitting = [asdict(room) for room in fits]
        machines({"device": where.name, "memory": where.memory, "notes": list(found.notes), "fits": fitting})
    return 0


def _say_notes(notes: Sequence[str], say: Say) -> None:
    for note in notes:
        say(f"({note})", markup=False)


def _steps(advice: Any) -> dict[str, Any]:
    return {**asdict(advice), "fits": advice.fits, "possible": advice.possible}


def _measure(json: bool) -> int:
    from onehop.cli.measure import measure  # torch loads only when there is something to measure
    from onehop.cli.measure_resident import resident
    from onehop.machine.measure import Bench

    report = beside(json)
    kept.check()
    held = resident(report)  # first: the processes that tell it do not want for memory then
    found = replace(measure(here(cards=False), bench=Bench(), report=report), resident=held)
    file = kept.keep(to_dict(found))
    _show_device(found, people(json).print)
    people(json).print(f"kept in {file}; onehop plan MODEL now tells times", markup=False, soft_wrap=True)
    if json:
        machines(_device_dict(found))
    return 0


def _show_device(found: Device, say: Any) -> None:
    say(Text.assemble((found.name, "bold"), f": {human_bytes(found.memory)} of memory; {found.source}"))
    if not found.flops:
        return
    say(f"  memory is read at {human_bytes(found.bandwidth)}/s")
    for dtype, rate in found.flops.items():
        say(f"  products in {dtype}: {human_flops(rate)}/s")
    if found.pace is not None:
        for phase, by_type in found.pace.per_layer.items():
            each = ", ".join(f"{seconds(s)} in {dtype}" for dtype, s in by_type.items())
            say(f"  a layer costs beside its arithmetic, {phase}: {each}")
    for phase, one in found.resident.items():
        others = "them" if phase == "training" else "what is prepared of its weights"
        say(f"  a process holds beside its tensors, {phase}: {human_bytes(one.base)} and {one.share:.0%} of {others}")


def _device_dict(found: Device) -> dict[str, Any]:
    """A device for a machine to read, without what was measured beyond its peaks."""
    return {key: value for key, value in to_dict(found).items() if key != "pace"}


def _machine(where: Device, json: bool) -> int:
    """This machine, and what may be asked."""
    machine, say = here(), people(json).print
    say(f"{machine.processor}, {machine.cores} cores, {human_bytes(machine.memory)} of memory", markup=False)
    for name, memory in machine.cards:
        say(f"{name}, {human_bytes(memory)}", markup=False)
    if where.flops:
        _show_device(where, say)
    else:
        say("not measured yet: onehop plan --measure (about a minute)", markup=False)
    rows = [
        (
            d.name,
            human_bytes(d.memory),
            f"{human_bytes(d.bandwidth)}/s",
            f"{human_flops(d.peak('bfloat16'))}/s",
            "" if (used := d.multiplies("bfloat16")) == "bfloat16" else f"in {used}",
        )
        for d in DEVICES
    ]
    say(sheet("device", "memory", "bandwidth", "bfloat16", "", rows=rows))
    say("  --device NAME and --json say where these figures are from", markup=False)
    say(fill(f"presets: {', '.join(presets)}", 100, subsequent_indent="  ", break_on_hyphens=False), markup=False)
    say("next: onehop plan MODEL, onehop plan MODEL --device H200, onehop plan --budget 1e21flops", markup=False)
    if json:
        machines(
            {"machine": asdict(machine), "here": _device_dict(where), "devices": [_device_dict(d) for d in DEVICES]}
        )
    return 0


def _budget(text: str, where: Device, how: dict[str, Any], served: float | None, json: bool) -> int:
    """The best use of a budget under each law."""
    if served is not None:
        _need_served(served)
    flops, words = budget_flops(text, where, dtype="bfloat16", **how)
    outcomes = for_budget(flops)
    say = people(json).print
    show_outcomes(outcomes, f"the best model for {words}", say)
    found = {"flops": flops, "outcomes": [asdict(one) for one in outcomes], "spread": spread(outcomes)}
    if served is not None:
        chosen = law(DEFAULT)
        assert isinstance(chosen, Law)
        best = for_serving(chosen, flops, served)
        found["served"] = asdict(best)
        say(
            f"the same loss at the least cost if it answers {human_count(served)} tokens ({DEFAULT}): "
            f"{human_count(best.parameters)} parameters on {human_count(best.tokens)} tokens, "
            f"{human_count(best.over_training)} times the tokens of its own optimum",
            markup=False,
        )
    if json:
        machines(found)
    return 0


def _need_served(tokens: float) -> None:
    """Refuse what is no number of tokens, or more than a law is asked about."""
    if not tokens > 0:
        raise ConfigError(f"--serve {tokens:g}: needs a number of tokens above 0.")
    if tokens > MOST:
        raise ConfigError(f"--serve {tokens:g}: a plan counts up to {MOST} tokens. Ask for less.")


def _fit(files: Sequence[str], json: bool) -> int:
    """A law of one's own."""
    from onehop.cost.fit import fit, points  # numpy loads only here

    found = fit(points(points_of(files)))
    say = people(json).print
    rows = [
        (name, f"{getattr(found.law, name):.4g}", f"{low:.4g} to {high:.4g}")
        for name, (low, high) in found.intervals.items()
    ]
    say(sheet(f"L = e + a/N^alpha + b/D^beta, {found.n_points} points", "", "95 % of resamples", rows=rows))
    say(f"misses the points by {found.rms:.2%} (root mean square)")
    if found.undetermined:
        say(f"the points do not determine {', '.join(found.undetermined)}: add runs of other sizes and lengths")
    if json:
        machines(asdict(found))
    return 0


def _sweep(text: str, question: Question, out: Path, json: bool) -> int:
    """A table over values of one key, and a plot."""
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not all(map(str.strip, values.split(","))):
        raise ConfigError(f"--sweep {text!r}: write key=value,value,… for example model.attention.n_kv_heads=1,2,4,8")
    if key.replace("-", "_") in question.given or key in [word.partition("=")[0].strip() for word in question.keys]:
        raise ConfigError(f"--sweep {key} takes its values in turn, and one is given for it beside. Leave that out.")
    check_png(out)
    words = [value.strip() for value in values.split(",")]
    rows = [_at(key, value, question) for value in words]
    try:
        found = list(zip(words, swept([(row.config, asked) for row, asked in rows], question.where), strict=True))
    except OnehopError as error:
        raise ConfigError(f"--sweep {key}: {error}") from error
    notes = list(dict.fromkeys(n for row, asked in rows for n in [*row.notes, *Plan(row.config).notes(asked)]))
    from onehop.cli.plan_picture import draw_sweep

    say = people(json).print
    _say_notes(notes, say)
    show_sweep(key, found, say, equal=len({asked.tokens for _, asked in rows}) == 1)
    draw_sweep(key, found, out)
    say(f"drawn into {out}", markup=False, soft_wrap=True)
    if json:
        values_found = [{"value": value, **asdict(f)} for value, f in found]
        machines({"key": key, "notes": notes, "rows": values_found, "plot": str(out)})
    return 0


SWEPT = ("context", "batch", "tokens", "dtype", "cache_dtype")


def _at(key: str, value: str, question: Question) -> tuple[Source, Asked]:
    """The model and what is asked with one key at a value. Raises ConfigError that names the value."""
    try:
        return _set(key, value, question)
    except OnehopError as error:
        raise ConfigError(f"--sweep {key}={value}: {error}") from error


def _set(key: str, value: str, question: Question) -> tuple[Source, Asked]:
    """The same, whether it is a key of the recipe or an option of this command."""
    if "." in key:
        return question.answer(f"{key}={value}")
    name = key.replace("-", "_")
    if name not in SWEPT:
        raise ConfigError(f"{key} is no key. Keys are written model.n_layers, or are {', '.join(SWEPT)}.")
    try:
        number = value if name.endswith("dtype") else float(value) if name == "tokens" else int(value)
    except ValueError:
        raise ConfigError(f"needs a {'' if name == 'tokens' else 'whole '}number") from None
    return question.answer(**{name: number})
