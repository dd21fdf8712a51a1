"""What `onehop plan` shows to people: sorted tables in humane units, a bar for each part, a verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onehop.base.units import human_bytes, human_count, human_flops, human_time
from onehop.cost.advice import Advice, Room
from onehop.cost.scaling import Outcome, spread
from onehop.cost.what_if import Figures, WhatIf

WIDTH = 24  # of a bar
Say = Callable[..., None]


def sheet(*columns: str, rows: Sequence[Sequence[Any]], title: str | None = None) -> Table:
    """A table whose first column is text and whose others are figures, which a narrow terminal does not cut."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    cells = [list(map(str, row)) for row in rows]
    for i, name in enumerate(columns):
        widest = max(map(len, [*name.split("\n"), *(row[i] for row in cells)])) if i else None
        drawn.add_column(
            name, justify="left" if i == 0 or name == "" else "right", min_width=widest, no_wrap=i > 0, overflow="fold"
        )
    for row in cells:
        drawn.add_row(*row)
    return drawn


def bar(share: float) -> str:
    """A bar of a share of 1."""
    return "█" * max(1, round(WIDTH * share)) if share > 0 else ""


def show_plan(found: Mapping[str, Any], name: str, say: Say) -> None:
    """Everything that `Plan.as_dict` holds."""
    asked, params = found["asked"], found["params"]
    active = "" if params["active"] == params["total"] else f", {human_count(params['active'])} active"
    say(Text.assemble((name, "bold"), f": {params['total']:,} parameters ({human_count(params['total'])}{active})"))
    for text in found["missing"]:
        say(f"  at least: {text} is missing (docs/planner.md says how a part of your own gives it)", markup=False)
    total = params["total"]
    parts = sorted(params["by_part"].items(), key=lambda pair: -pair[1])
    rows = [(part, f"{n:,}", f"{n / total:.1%}", bar(n / total)) for part, n in parts]
    rows.append(
        ("embeddings", f"{params['embedding']:,}", f"{params['embedding'] / total:.1%}", "of all: one row per id")
    )
    say(sheet("parameters", "", "share", "", rows=rows))
    say()
    say(sheet("one token", "FLOPs", "with scores of", rows=_flops_rows(found["flops"], asked)))
    say()
    _show_cache(found["kv_cache"], asked, say)
    _show_attention(found["attention"], asked, say)
    _show_memory(found, say)
    if "time" in found:
        _show_time(found, say)
    _show_loss(found, say)


def _flops_rows(f: Mapping[str, float], asked: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    trained = f"{asked['train_context']} tokens"
    rows = [
        ("training, all pairs of queries and keys", human_flops(f["train_per_token"]), trained),
        ("  of it attention's scores and values", human_flops(f["train_per_token_attention"]), ""),
        ("  the same, only pairs that are seen", human_flops(f["train_per_token_attention_causal"]), ""),
        ("  6·N, for comparison", human_flops(f["train_per_token_6n"]), "none"),
        ("reading a prompt", human_flops(f["prefill"] / asked["context"]), f"{asked['context']} tokens"),
    ]
    if "decode_per_token" in f:
        rows.append(("decoding", human_flops(f["decode_per_token"]), f"{asked['context']} tokens"))
    return rows


def _show_cache(cache: Mapping[str, Any], asked: Mapping[str, Any], say: Say) -> None:
    if not cache["by_kind"]:
        say("no KV cache: tokens see those behind them, so no text is continued token by token")
        say()
        return
    rows = [
        (f"{kind['layers']} × {kind['kind']}" + (f", window {kind['window']}" if kind["window"] else ""),
         f"{kind['bytes_per_token'] * kind['layers']:,} B a token")
        for kind in cache["by_kind"]
    ]  # fmt: skip
    what = f"{asked['batch']} × {asked['context']} tokens"
    rows.append((what, human_bytes(cache["bytes"])))
    if cache["cross_bytes_per_token"]:
        rows.append(("of it the source, written once", f"{cache['cross_bytes_per_token']:,} B a token"))
    say(sheet(f"KV cache in {cache['dtype']}", "", rows=rows))
    say()


def _show_attention(found: Mapping[str, Any], asked: Mapping[str, Any], say: Say) -> None:
    at = found["crossover_tokens"]
    twice = "at no length twice as much" if at is None else f"twice as much from {at} on"
    say(
        f"attention over {asked['context']} tokens moves {human_bytes(found['plain_bytes'])} as defined, "
        f"{human_bytes(found['tiled_bytes'])} by tiles ({twice})"
    )
    say()


def _show_memory(found: Mapping[str, Any], say: Say) -> None:
    memory, asked = found["memory"], found["asked"]
    train, serve = memory["training"], memory["inference"]
    kind = f"weights in {asked['dtype']}" if asked["stored"] is None else "weights as in the file"
    rows = [(name, human_bytes(serve[key])) for name, key in (
        (kind, "weights"), ("KV cache", "kv_cache"), ("working", "working"),
        ("prepared copies (CPU)", "prepared"), ("margin, 5 %", "margin"),
    ) if serve[key]]  # fmt: skip
    rows.append(("together", human_bytes(memory["inference_bytes"])))
    rows += _resident(memory, "inference")
    say(sheet(f"memory to serve {asked['batch']} × {asked['context']} tokens", "", rows=rows))
    say()
    rows = [(name, human_bytes(train[name])) for name in (
        "weights", "optimizer", "gradients", "activations", "logits", "working", "margin"
    ) if train[name]]  # fmt: skip
    rows.append((f"together, at {train['peak_at']}", human_bytes(memory["training_bytes"])))
    rows += _resident(memory, "training")
    how = f"{asked['train_rows']} × {asked['train_context']} tokens in {asked['precision']}, {asked['optimizer']}"
    say(sheet(f"memory to train on {how}", "", rows=rows))
    say()


def _resident(memory: Mapping[str, Any], phase: str) -> list[tuple[str, str]]:
    """A row for what the process will hold, libraries and all, where that was measured."""
    key = f"{phase}_resident_bytes"
    return [("resident, as measured here", human_bytes(memory[key]))] if key in memory else []


def _show_time(found: Mapping[str, Any], say: Say) -> None:
    t, device = found["time"], found["device"]
    rows = [
        (phase, f"{human_count(t[f'{key}_tokens_per_s'])} tokens/s", seconds(t[f"{key}_s"]), t[f"{key}_bound_by"])
        for phase, key in (("training step", "training"), ("reading the prompt", "prefill"), ("decoding", "decode"))
        if f"{key}_s" in t
    ]
    measured = "measured" in device["source"]
    title = f"{device['name']}: " + ("expected" if measured else "at most (its maker's figures, nothing lost)")
    say(sheet(title, "", "each", "bound by", rows=rows))
    say(f"  {device['source']}", markup=False)
    say()


def seconds(s: float) -> str:
    """A short or long time."""
    return human_time(s) if s >= 60 else f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.3g} ms"


def _show_loss(found: Mapping[str, Any], say: Say) -> None:
    outcomes, asked = [Outcome(**one) for one in found["loss"]], found["asked"]
    after = "" if asked["tokens"] is None else f" after {human_count(asked['tokens'])} tokens"
    title = f"loss{after}, by law" if after else "loss, and the tokens for which this size is the best, by law"
    show_outcomes(outcomes, title, say, guess=math.log(found["vocab_size"]))


def show_outcomes(outcomes: Sequence[Outcome], title: str, say: Say, *, guess: float = math.inf) -> None:
    """What each scaling law says, and how far they lie apart; no loss above that of a `guess`."""
    found = spread(list(outcomes))
    columns = {
        "law": [*(o.law for o in outcomes), "apart by"],
        "parameters": [*(human_count(o.parameters) for o in outcomes), f"{_three(found['parameters_ratio'])} ×"],
        "tokens": [*(human_count(o.tokens) for o in outcomes), f"{_three(found['tokens_ratio'])} ×"],
        "tokens each": [*(_three(o.tokens_per_parameter) for o in outcomes), ""],
        "of the best": [*(f"{_three(o.over_training)} ×" for o in outcomes), ""],
        "nats/token": [
            *(f"{o.loss:.3f}" if o.loss < guess else NOTHING for o in outcomes),
            f"{found['loss_difference']:.3f}" if all(o.loss < guess for o in outcomes) else "",
        ],
    }
    if all(o.over_training == 1 for o in outcomes):
        del columns["of the best"]
    say(title, markup=False)
    say(sheet(*columns, rows=list(zip(*columns.values(), strict=True))))
    if any(o.loss >= guess for o in outcomes):
        say(f"  –: above {guess:.2f}, what a guess among all ids costs: no law was made for models so small")


def _three(x: float) -> str:
    """A ratio to three digits, without an exponent: '4.3', '1,990'."""
    return f"{x:.3g}" if x < 999.5 else f"{x:,.0f}"


def show_advice(serve: Advice, train: Advice, device: str, say: Say) -> None:
    """Whether it fits; if not, what to change, in order."""
    for what, advice in (("serving", serve), ("training", train)):
        if advice.fits:
            say(f"{what} fits {device}: {human_bytes(advice.needed)} of {human_bytes(advice.room)}", markup=False)
            continue
        say(f"{what} does not fit {device}: {human_bytes(advice.needed)} of {human_bytes(advice.room)}", markup=False)
        if not advice.possible:
            least = min((step.needed for step in advice.steps), default=advice.needed)
            say(
                f"  no setting makes it fit ({human_bytes(least)} at least): a smaller model, or more devices",
                markup=False,
            )
            continue
        for number, step in enumerate(advice.steps, 1):
            say(f"  {number}. {step.change}: {human_bytes(step.needed)}{', fits' if step.fits else ''}", markup=False)


def show_rooms(rooms: Sequence[Room], device: str, memory: float, say: Say) -> None:
    """How many texts fit, by type of weights and context."""
    contexts = list(rooms[0].texts)
    rows = [
        (
            room.dtype,
            human_bytes(room.weights),
            *("–" if not room.texts[c] else human_count(room.texts[c]) for c in contexts),
            "any" if room.longest is None else f"{room.longest:,}" if room.longest else "–",
        )
        for room in rooms
    ]
    say(f"texts at once on {device} ({human_bytes(memory)}), by weights and context", markup=False)
    say(sheet("weights", "take", *(f"{c:,}" for c in contexts), "longest text", rows=rows))


def show_what_ifs(rows: Sequence[WhatIf], say: Say) -> None:
    """One change a line."""
    say(_compared("what if", [(row.name, row.figures) for row in rows], leave="cache\n/token"))
    say("  as large: as many parameters in blocks; 8 experts: half as wide each, for the same FLOPs", markup=False)
    _say_law([row.figures for row in rows], say, equal=True)


def show_sweep(key: str, rows: Sequence[tuple[str, Figures]], say: Say, *, equal: bool) -> None:
    """One value of a key a line. equal: whether all may spend as much on training, and not each its own tokens."""
    say(f"{key} at each value", markup=False)
    say(_compared(key.rpartition(".")[2], rows))
    _say_law([f for _, f in rows], say, equal=equal)


def _say_law(rows: Sequence[Figures], say: Say, *, equal: bool) -> None:
    """What the loss is, where there is one."""
    if all(f.loss is None for f in rows):
        return
    spent = "the training FLOPs that the first line would take" if equal else "the tokens of each"
    say(f"  loss: by the law of the replication, for {spent}", markup=False)
    say(
        "  (the law sees active parameters and tokens alone: no shape, and no weights in few bits)",
        markup=False,
    )


def _compared(first: str, rows: Sequence[tuple[str, Figures]], *, leave: str | None = None) -> Table:
    """The figures of each row, in at most 100 columns; a column that would tell nothing is left out."""
    names = [name for name in COLUMNS if name != leave]
    if all(f.active == f.params for _, f in rows):
        names.remove("active")
    columns = {name: [COLUMNS[name](f) for _, f in rows] for name in names}
    told = {name: column for name, column in columns.items() if set(column) != {NOTHING}}
    cells = [(name, *(column[i] for column in told.values())) for i, (name, _) in enumerate(rows)]
    return sheet(first, *told, rows=cells)


NOTHING = "–"
COLUMNS: dict[str, Callable[[Figures], str]] = {
    "params": lambda f: human_count(f.params),
    "active": lambda f: human_count(f.active),
    "FLOP\n/token": lambda f: human_flops(f.train_flops_per_token).removesuffix("FLOP"),
    "cache\n/token": lambda f: human_bytes(f.kv_bytes_per_token),
    "cache": lambda f: human_bytes(f.kv_bytes),
    "serve": lambda f: human_bytes(f.inference_bytes),
    "train": lambda f: human_bytes(f.training_bytes),
    "tokens\n/s": lambda f: NOTHING if f.decode_tokens_per_s is None else human_count(f.decode_tokens_per_s),
    "latency": lambda f: NOTHING if f.latency_s is None else seconds(f.latency_s),
    "loss": lambda f: NOTHING if f.loss is None else f"{f.loss:.3f}",
}
