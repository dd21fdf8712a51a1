"""A checkpoint family: its config keys and its tensors, two tables that are read and written by. No torch."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onehop.base.choices import Choices
from onehop.base.errors import CheckpointError, ConfigError
from onehop.config.attention import ATTENTIONS, SCORES, AttentionConfig
from onehop.config.ffn import FFNS
from onehop.config.model import ModelConfig, StackConfig
from onehop.config.norm import NORMS
from onehop.config.part import Part
from onehop.config.position import POSITIONS, NTKScaling, RopeConfig
from onehop.formats.keys import Json, KeyRow, nested, read_keys, renamed, write_keys
from onehop.formats.rope_keys import base
from onehop.formats.table import Row, respelled

# Leaves of our config that no layout needs to carry, and why.
HARMLESS = {
    "parts": "files of own parts are named by whoever loads",
    "dropout.embed": "training only",
    "dropout.residual": "training only",
}


# Ends of paths, likewise.
HARMLESS_ENDS = {".statistics": "a norm's dtype, which matters in float64 only"}


class Leaf(NamedTuple):
    """A place in a config: its path, and its layer where it belongs to a block."""

    path: str
    layer: int | None = None


def no_limits(config: ModelConfig) -> Iterator[str]:
    """For families that take every config of their structure."""
    yield from ()


@dataclass(frozen=True)
class Family:
    """One family in one layout.

    `structure`: what all its models have in common, as paths of our config; `limits`: what its own code refuses;
    `aliases`: other names that a key may have; `prefix`: what the names of tensors lack in files of the body alone;
    `old_ends`: ends of names in today's files, and what old ones have there.
    """

    name: str  # config.json's model_type
    title: str
    architecture: str
    structure: Mapping[str, Any]
    keys: tuple[KeyRow, ...]
    tensors: tuple[Row, ...]
    limits: Callable[[ModelConfig], Iterator[str]] = no_limits
    aliases: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    old_ends: Mapping[str, str] = field(default_factory=dict)

    def tensors_of(self, names: Iterable[str]) -> tuple[Row, ...]:
        """The table for a file with these names: many were saved from the body, whose names lack the prefix."""
        names = tuple(names)
        cut = "" if any(name.startswith(self.prefix) for name in names) else self.prefix
        ends = {new: old for new, old in self.old_ends.items() if any(name.endswith(old) for name in names)}

        def spell(name: str) -> str:
            new = next((end for end in ends if name.endswith(end)), None)
            return (name if new is None else name.removesuffix(new) + ends[new]).removeprefix(cut)

        return tuple(respelled(row, spell) for row in self.tensors)

    def identity(self) -> Json:
        """The keys that say whose file it is."""
        return {"architectures": [self.architecture], "model_type": self.name}

    def read_config(self, raw: Json) -> ModelConfig:
        """Their config.json as our config. Raises CheckpointError for every key that cannot be honoured."""
        paths = read_keys(self.keys, renamed(raw, self.aliases), title=self.title)
        try:
            config = ModelConfig.model_validate(nested(dict(self.structure) | paths))
        except ConfigError as error:
            raise CheckpointError(f"config.json, in onehop's words: {error}") from error
        config.need_vocab()
        return config

    def write_config(self, config: ModelConfig) -> Json:
        """Our config as their config.json. Raises ConfigError naming what this layout cannot express.

        What was written is read back; whatever did not survive is refused, so that nothing is lost without a word.
        """
        own = [(leaf, value) for leaf, value in leaves(config) if _is_own(leaf.path, value)]
        for leaf, value in own + self._other(config):
            raise self._refusal(config, leaf, value)
        for text in self.limits(config):
            raise ConfigError(f"{text} {self._way_out()}")
        raw = {**self.identity(), **write_keys(self.keys, config)}
        try:
            again = self.read_config(raw)
        except CheckpointError as error:
            raise ConfigError(f"this model cannot be written as a {self.title}: {error} {self._way_out()}") from error
        for leaf, value in lost(config, again):
            raise self._refusal(config, leaf, value)
        return raw

    def unlike(self, config: ModelConfig) -> tuple[int, int]:
        """In how many places a config differs from what all of this family have in common, and from what it can say."""
        other = self._other(config)
        if other:
            return len(other), 0
        try:
            again = self.read_config({**self.identity(), **write_keys(self.keys, config)})
        except CheckpointError:
            return 1, 0
        return 0, sum(1 for _ in lost(config, again))

    def _other(self, config: ModelConfig) -> list[tuple[Leaf, Any]]:
        structure = {path.removesuffix(".kind"): value for path, value in self.structure.items()}
        return [(leaf, value) for leaf, value in leaves(config) if structure.get(leaf.path, value) != value]

    def _refusal(self, config: ModelConfig, leaf: Leaf, value: Any) -> ConfigError:
        shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
        own = " (a part of your own)" if _is_own(leaf.path, value) else ""
        where = f" (layer {leaf.layer})" if leaf.layer is not None and len(config.blocks) > 1 else ""
        return ConfigError(f"{leaf.path}={shown}{own}{where} cannot be written as a {self.title}. {self._way_out()}")

    def _way_out(self) -> str:
        return "Save a onehop folder instead (format onehop), which holds everything."


def lost(ours: ModelConfig, again: ModelConfig) -> Iterator[tuple[Leaf, Any]]:
    """Every leaf of `ours` that came back otherwise, with the value it had."""
    after = dict(leaves(again))
    for leaf, value in leaves(ours):
        if leaf in after:
            same = after[leaf] == value
        else:  # a table came back as nothing, or nothing as a table
            same = value is None and not any(
                leaf.layer == b.layer and b.path.startswith(f"{leaf.path}.") for b in after
            )
        if not same:
            yield leaf, value


def leaves(config: ModelConfig) -> Iterator[tuple[Leaf, Any]]:
    """Everything that decides the numbers, with its value: equal for configs that build equal models."""
    yield from _stack_leaves(config, "")
    if config.encoder is not None:
        yield from _stack_leaves(config.encoder, "encoder.")


def _stack_leaves(stack: StackConfig, where: str) -> Iterator[tuple[Leaf, Any]]:
    for name in type(stack).model_fields:
        if name not in ("blocks", "pattern", "encoder"):
            yield from _part_leaves(getattr(stack, name), Leaf(where + name))
    for i, block in enumerate(stack.layers()):
        for name in type(block).model_fields:
            if name != "name":
                yield from _part_leaves(getattr(block, name), Leaf(where + name, i))


def _part_leaves(value: Any, leaf: Leaf) -> Iterator[tuple[Leaf, Any]]:
    if leaf.path in HARMLESS or leaf.path.endswith(tuple(HARMLESS_ENDS)):
        return
    if not isinstance(value, Part):
        yield Leaf(leaf.path.removesuffix(".kind"), leaf.layer), value
        return
    for name in type(value).model_fields:
        yield from _part_leaves(_normal(value, name), Leaf(f"{leaf.path}.{name}", leaf.layer))


def _normal(part: Part, name: str) -> Any:
    """A field's value in its plainest form: a default spelled out is a default, a fixed NTK scaling another base."""
    value = getattr(part, name)
    if not isinstance(part, AttentionConfig):
        return value
    if name == "scale" and value is not None and math.isclose(value, part.d_head**-0.5, rel_tol=1e-12):
        return None
    if name == "position" and isinstance(value, RopeConfig):
        width = None if value.width == part.d_head else value.width
        scaling = None if isinstance(value.scaling, NTKScaling) else value.scaling
        return value.model_copy(update={"width": width, "theta": base(value, part.d_head), "scaling": scaling})
    return value


TABLES: Mapping[str, Choices[Any]] = {
    "attention": ATTENTIONS,
    "ffn": FFNS,
    "norm": NORMS,
    "final_norm": NORMS,
    "position": POSITIONS,
    "score": SCORES,
}


def _is_own(path: str, value: Any) -> bool:
    """Whether a kind was added by a user's file."""
    table = TABLES.get(path.rpartition(".")[2])
    return table is not None and isinstance(value, str) and table.is_own(value)
