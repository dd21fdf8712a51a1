"""A recipe from its layers: preset < base < file < overrides; and a model's config from a saved table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from onehop.base.errors import ConfigError, did_you_mean
from onehop.config.expand import preset_of
from onehop.config.layers import Layer, file_layers, relocate
from onehop.config.model import ModelConfig
from onehop.config.origins import Origins, leaves
from onehop.config.overrides import Overrides, as_layer
from onehop.config.own import load_own
from onehop.config.raw import Raw, block_names, merge, merge_stacks, names_in
from onehop.config.recipe import Recipe
from onehop.config.refusal import UnknownKind
from onehop.config.tune import contradictions
from onehop.config.write import to_dict

ModelOf = Callable[[str], ModelConfig]  # the architecture of a model that a recipe goes on from


@dataclass(frozen=True)
class Loaded:
    """A recipe and where each of its values comes from."""

    recipe: Recipe
    origins: Mapping[str, str]

    def explain(self) -> list[tuple[str, Any, str]]:
        """Rows (key, value, origin), one for each value of the resolved recipe, in the recipe's order."""
        return [(key, value, self.origins[key]) for key, value in leaves(self.recipe).items()]


def read(
    source: str | Path,
    overrides: Overrides = (),
    *,
    root: str | Path | None = None,
    model_of: ModelOf | None = None,
) -> Loaded:
    """The recipe in the file `source` (.toml or .json), or the shipped one of that name, under `overrides`.

    `overrides` are words as on the command line ('train.steps=100') or a dict {'train.steps': 100}. Paths in overrides
    start from `root` (left out: the current directory); paths in a file from its folder, or from `root` where the
    folder has no such thing. Files in `model.parts` are run before anything is checked. `model_of` opens what
    `tune.init` names, whose architecture is the recipe's then. Raises ConfigError.
    """
    layers = file_layers(source, root)
    if "base" in (words := as_layer(overrides)):
        raise ConfigError(f"base={words['base']} belongs in a recipe's file, not among its overrides")
    asked = Layer(relocate(words, None, root), "command line")
    for part in _parts([*layers, asked]):
        load_own(part)
    try:
        return _resolve(_with_preset([*layers, asked]), model_of)
    except PydanticCustomError as error:  # a rule that was broken before the whole could be checked
        raise ConfigError(str(error)) from None


def _resolve(layers: list[Layer], model_of: ModelOf | None) -> Loaded:
    """Layers, lowest first and the overrides last, as one checked recipe."""
    _check_blocks(layers[:-1], layers[-1])
    init = next((found for layer in reversed(layers) if (found := _table(layer.table, "tune").get("init"))), None)
    begun = model_of(init) if isinstance(init, str) and init != "none" and model_of is not None else None
    if begun is not None:
        layers = [Layer({"model": to_dict(begun)}, f"tune.init {init}"), *layers]
    origins = Origins()
    raw: Raw = {}
    done: list[Raw] = []
    for layer in layers:
        done.append(layer.table)
        raw = _merged(done)
        origins.add(layer.table, layer.origin, raw)
    recipe = Recipe.model_validate(raw)
    for text in contradictions(recipe.model, begun, str(init)) if begun is not None else ():
        raise ConfigError(text)
    return Loaded(recipe, origins.of(recipe))


def model_from_dict(raw: Raw, *, parts: Iterable[str | Path] = ()) -> ModelConfig:
    """The config of a saved model. The names in its own `parts` are kept but not run: only the files in `parts` are.

    Raises ConfigError; a kind that no table knows may be a part of the user's own, and the refusal says how to name it.
    """
    parts = list(parts)
    for part in parts:
        load_own(part)
    try:
        config = ModelConfig.model_validate(raw)
    except UnknownKind as error:
        saved = ", ".join(map(str, raw.get("parts") or ())) if isinstance(raw, dict) else ""
        made = f" The model was made with {saved}." if saved else ""
        raise ConfigError(f"{error} It may be a part of your own: name its file (--parts my_parts.py).{made}") from None
    config.need_vocab()
    return config


def _merged(tables: list[Raw]) -> Raw:
    """Layers of a recipe as one table, its model's blocks written out."""
    out: Raw = {}
    for table in tables:
        out = merge(out, {key: value for key, value in table.items() if key != "model"})
    models = [table["model"] for table in tables if "model" in table]
    if models:
        out["model"] = merge_stacks(models, "model.")
    return out


def _with_preset(layers: list[Layer]) -> list[Layer]:
    """The layers with the last named preset below them, and without the keys that name one.

    Where a preset comes after layers that describe a shape of their own (they name no preset, but a width), it replaces
    that shape: laid below it, it would change nothing.
    """
    name: Any = None
    for i, layer in enumerate(layers):
        model = layer.table.get("model")
        if not isinstance(model, dict | None):
            raise ConfigError(f"model={model!r}: needs a table of keys, for example model.d_model=… ({layer.origin})")
        if model is None or "preset" not in model:
            continue
        if name is None and any("d_model" in _table(below.table, "model") for below in layers[:i]):
            for below in layers[:i]:
                below.table.pop("model", None)
        name = model.pop("preset")
    preset = preset_of({"preset": name}, "model.")
    return layers if preset is None else [Layer({"model": dict(preset)}, f"preset {name}"), *layers]


def _parts(layers: list[Layer]) -> list[str]:
    """The files of own parts that the last layer to name any names."""
    found: Any = ()
    for layer in layers:
        model = layer.table.get("model")
        if isinstance(model, dict) and "parts" in model:
            found = model["parts"]
    return [found] if isinstance(found, str) else [str(part) for part in found] if isinstance(found, list) else []


def _check_blocks(layers: list[Layer], asked: Layer) -> None:
    """Refuse a block that only an override names, unless its pattern uses it: it is a misspelt one."""
    for where in ("model", "model.encoder"):
        own = _table(asked.table, where)
        below = [name for layer in layers for name in block_names(_table(layer.table, where), f"{where}.")]
        for name in block_names(own, f"{where}."):
            if name in below or name in names_in(own.get("pattern")) or (not below and name == "block"):
                continue
            has = f"This model has one block: write {where}.attention…, {where}.ffn…"
            if below:
                has = did_you_mean(f"{where}.blocks.{name}", [f"{where}.blocks.{known}" for known in below])
            raise ConfigError(f"{where}.blocks.{name} does not exist. {has}")


def _table(table: Raw, path: str) -> Raw:
    """The table at a path, empty where there is none."""
    for word in path.split("."):
        inner = table.get(word)
        table = inner if isinstance(inner, dict) else {}
    return table
