"""The keys of rotary positions, in both ages of config.json. No torch.

For years files carried `rope_theta` and `rope_scaling` (with `type` or `rope_type`); today's carry `rope_parameters`.
Both are read, and both are written: a reader of the old age that found only the new keys would take theta 10000 without
a word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onehop.base.errors import CheckpointError
from onehop.config.attention import AttentionConfig
from onehop.config.model import ModelConfig
from onehop.config.position import DynamicScaling, NTKScaling, RopeConfig
from onehop.formats.keys import Json, number, plain

LENGTH = "max_position_embeddings"
ORIGINAL = "original_max_position_embeddings"

# kind of scaling -> their key: our field. What a file may hold beside these changes nothing, or is refused.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        ORIGINAL: "original_max_len",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
        "truncate": "truncate",
    },
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        ORIGINAL: "original_max_len",
    },
    "longrope": {
        "short_factor": "short_factor",
        "long_factor": "long_factor",
        ORIGINAL: "original_max_len",
        "factor": "factor",
        "attention_factor": "attention_factor",
    },
}
ALIASES = {"su": "longrope"}  # the name under which LongRoPE was first published
NEEDED = {"linear": ("factor",), "dynamic": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
          "longrope": ("short_factor", "long_factor")}  # fmt: skip
IGNORED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}


@dataclass(frozen=True)
class Rope:
    """A row for theta, scaling and the longest text.

    `part`: the share of each head that turns where the file says nothing; None: heads turn as a whole, or are refused.
    """

    length: int  # what their code takes where max_position_embeddings is absent
    theta: float = 10000.0
    part: float | None = None
    old_theta: str = "rope_theta"  # what the old age called them
    old_part: str = "partial_rotary_factor"
    original: int | None = None  # original_max_position_embeddings, in families whose own code has a default for it
    kinds: tuple[str, ...] = tuple(FIELDS)  # the scalings that their code accepts

    @property
    def names(self) -> tuple[str, ...]:
        return (LENGTH, self.old_theta, "rope_scaling", "rope_parameters", self.old_part, ORIGINAL)

    def read(self, raw: Json) -> Json:
        table = _table(self._renamed(raw), self.theta)
        length = _length(raw, self.length)
        if table["rope_type"] not in self.kinds:
            raise CheckpointError(
                f"config.json: rotary scaling {table['rope_type']!r} cannot be honoured: this layout has "
                f"{' or '.join(self.kinds)}."
            )
        scaling = _scaling(table, length)
        path = "attention.position"
        return {
            f"{path}.theta": table["rope_theta"],
            f"{path}.scaling": scaling,
            "max_len": _longest(scaling, length),
            **({} if (width := self._width(raw, table)) is None else {f"{path}.width": width}),
        }

    def _renamed(self, raw: Json) -> Json:
        """The old age's keys under the names that most families gave them."""
        names = {self.old_theta: "rope_theta", self.old_part: "partial_rotary_factor"}
        given = {names.get(key, key): value for key, value in raw.items()}
        return given if given.get(ORIGINAL) is not None else {**given, ORIGINAL: self.original}

    def _width(self, raw: Json, table: Json) -> int | None:
        """How many dims of a head turn; None: all."""
        part = number("partial_rotary_factor", table.get("partial_rotary_factor", self.part or 1))
        if part == 1:
            return None
        if self.part is None or part > 1:
            raise CheckpointError(
                f"config.json: partial_rotary_factor={part!r} cannot be honoured: whole heads turn here."
            )
        heads, d_model = raw.get("num_attention_heads"), raw.get("hidden_size")
        d_head = raw.get("head_dim") or number("hidden_size", d_model) // number("num_attention_heads", heads)
        return int(number("head_dim", d_head) * part)

    def write(self, config: ModelConfig) -> Json:
        turning = (b.attention for b in config.layers() if isinstance(b.attention.position, RopeConfig))
        first = next(turning, None)
        return {LENGTH: config.max_len} if first is None else self.write_for(first, config.max_len)

    def write_for(self, attention: AttentionConfig, length: int) -> Json:
        """The keys of one layer's attention in a model for texts of `length` tokens."""
        position = attention.position
        assert isinstance(position, RopeConfig), "asked of a layer that turns"
        scaling, theta = position.scaling, base(position, attention.d_head)
        kind, table = "default", {}
        if scaling is not None and not isinstance(scaling, NTKScaling):
            kind = scaling.kind
            values = {theirs: getattr(scaling, ours) for theirs, ours in FIELDS[kind].items()}
            table = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
        if isinstance(scaling, DynamicScaling):
            length = scaling.original_max_len
        # Readers of the first years know `type` only, and the two kinds that there were then.
        name = "type" if kind in ("linear", "dynamic") else "rope_type"
        part = _share(position.width or attention.d_head, attention.d_head)
        new = {} if self.part is None else {"partial_rotary_factor": part}
        old = {} if self.part is None else {self.old_part: part}
        return {
            LENGTH: length,
            self.old_theta: theta,
            **old,
            **({ORIGINAL: table[ORIGINAL]} if self.original is not None and ORIGINAL in table else {}),
            "rope_scaling": None if kind == "default" else {name: kind, **table},
            "rope_parameters": {"rope_type": kind, "rope_theta": theta, **new, **table},
        }


def _share(width: int, d_head: int) -> float:
    """The share of a head that turns, such that int(d_head · share) is `width` again."""
    share = width / d_head
    return share if int(d_head * share) == width else math.nextafter(share, 1)


def _longest(scaling: Json | None, length: int) -> int:
    """The longest text, in tokens, that max_position_embeddings and the scaling together speak of."""
    if scaling is not None and scaling["kind"] == "dynamic":
        return max(1, int(length * scaling["factor"]))  # theirs is the length up to which nothing changes
    if scaling is not None and scaling["kind"] == "yarn":
        return max(length, int(scaling["original_max_len"] * scaling["factor"]))  # many files leave theirs unstretched
    return length


def base(position: RopeConfig, d_head: int) -> float:
    """Theta; a fixed NTK scaling is nothing but another base: theta · factor^(d / (d - 2))."""
    width = position.width or d_head
    if isinstance(position.scaling, NTKScaling):
        return position.theta * position.scaling.factor ** (width / (width - 2))
    return position.theta


def _table(raw: Json, theta: float) -> Json:
    """The keys of either age as one table; both may be there if they agree."""
    old = _typed(raw, "rope_scaling")
    new = _typed(raw, "rope_parameters")
    for key in ("rope_theta", "partial_rotary_factor"):
        if raw.get(key) is not None:
            old = {key: raw[key], **old}
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            raise CheckpointError(
                f"config.json says {key} twice and differently: {old[key]!r}, and {new[key]!r} in rope_parameters. "
                "Remove the wrong one."
            )
    table: Json = {"rope_type": "default", "rope_theta": theta} | old | new
    kind = str(ALIASES.get(table["rope_type"], table["rope_type"]))
    table["rope_type"] = kind
    if raw.get(ORIGINAL) is not None and ORIGINAL in FIELDS.get(kind, ()):
        table[ORIGINAL] = raw[ORIGINAL]  # given beside the table it wins, as in their code
    _check(table)
    return table


def _typed(raw: Json, key: str) -> Json:
    found = raw.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}={found!r} should be a table")
    found = {k: v for k, v in found.items() if v is not None}
    kinds = {str(found[k]) for k in ("type", "rope_type") if k in found}
    if len(kinds) > 1:
        raise CheckpointError(
            f"config.json: {key} has two types: {found['type']!r} and {found['rope_type']!r}. Remove one."
        )
    return {**{k: v for k, v in found.items() if k != "type"}, **({"rope_type": kinds.pop()} if kinds else {})}


def _check(table: Json) -> None:
    kind = table["rope_type"]
    if kind not in FIELDS:
        raise CheckpointError(f"config.json: rotary scaling {kind!r} is not known. Known: {', '.join(sorted(FIELDS))}.")
    for key in table:
        if key not in FIELDS[kind] and key not in IGNORED:
            raise CheckpointError(
                f"config.json: {plain(key)}={table[key]!r} is unknown for rotary scaling {kind!r} and could change it."
            )
    for key in NEEDED.get(kind, ()):
        if key not in table:
            raise CheckpointError(f"config.json: rotary scaling {kind!r} needs {key}, which is missing.")
    for key in ("rope_theta", "factor", ORIGINAL):
        if key in table:
            number(key, table[key])


def _length(raw: Json, default: int) -> int:
    length = raw.get(LENGTH, default)
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(f"config.json: {LENGTH}={length!r} should be a whole number above 0.")
    return length


def _scaling(table: Json, length: int) -> Json | None:
    kind = table["rope_type"]
    if kind == "default":
        return None
    out = {"kind": kind} | {ours: table[theirs] for theirs, ours in FIELDS[kind].items() if theirs in table}
    if kind == "dynamic":
        return {**out, "original_max_len": length}
    if ORIGINAL in FIELDS[kind]:
        out.setdefault("original_max_len", length)
    if kind in ("yarn", "longrope"):
        out.setdefault("factor", length / out["original_max_len"])
    return {field: value for field, value in out.items() if field not in _idle(out)}


def _idle(scaling: Json) -> set[str]:
    """Fields that their code does not look at: those below a given attention factor, half of a pair, zeros."""
    idle = {field for field in ("beta_fast", "beta_slow") if not scaling.get(field)}
    if scaling["kind"] == "yarn":
        pair = {"mscale", "mscale_all_dim"}
        idle |= pair if "attention_factor" in scaling or not all(scaling.get(field) for field in pair) else set()
    if scaling["kind"] == "longrope" and "attention_factor" in scaling:
        idle.add("factor")
    return idle
