"""From what a user calls MODEL to a config: preset, recipe, folder, file or hub name. No weights are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from onehop.base.errors import CheckpointError, ConfigError, OnehopError, did_you_mean
from onehop.base.hub import HubName, why_not_fetched
from onehop.base.shipped import shipped, shipped_names
from onehop.config.model import ModelConfig
from onehop.config.named import presets
from onehop.config.overrides import as_layer
from onehop.config.own import load_own
from onehop.config.presets import PRESETS
from onehop.config.raw import merge_stacks
from onehop.config.read import model_from_dict, read
from onehop.config.recipe import Recipe, TrainConfig
from onehop.cost.account import wishes

if TYPE_CHECKING:
    from onehop.formats.folder import Described

RECIPE, CONFIG, GGUF = "recipe.toml", "config.json", ".gguf"


@dataclass(frozen=True)
class Source:
    """A config, where it came from, and what its source says beside it: how it is trained, bytes of stored weights."""

    config: ModelConfig
    name: str
    kind: str
    trained: dict[str, Any] = field(default_factory=dict)  # fields of Asked
    stored: float | None = None
    dtype: str | None = None
    loads: str | None = None  # the type in which onehop loads a GGUF file's weights
    notes: tuple[str, ...] = ()


def source(model: str, keys: Sequence[str] = (), *, parts: Sequence[str | Path] = ()) -> Source:
    """What MODEL is, under overrides `keys` ('model.n_layers=8'). Raises OnehopError naming the near miss."""
    for part in parts:
        load_own(part)
    if not model:
        raise ConfigError("a model without a name. Give a preset, a recipe, a folder, a file or a hub name.")
    path = Path(model)
    if model in presets:
        recipe = shipped("runs", model)
        note = () if recipe is None else (f"the recipe {model} is another thing: onehop plan {recipe}",)
        table, trained = _keys(keys)
        config = _merged(dict(PRESETS[model]), table)
        return Source(config, model, "preset", trained, notes=note)
    own = None if path.exists() else shipped("models", model)
    if path.suffix == ".toml" or (own is None and shipped("runs", model) is not None and not path.exists()):
        return _recipe(model, keys)
    if path.suffix == ".json" and path.is_file():
        return _json(path, keys, parts)
    if path.suffix == GGUF and not path.exists():
        raise CheckpointError(f"{model} is not there. Check the path.")
    folder, _, kind = model.rpartition(":")
    if path.is_dir() or path.suffix == GGUF or (folder and Path(folder).is_dir()):
        place = _one_file(path) if path.exists() else _of_kind(Path(folder), kind) or path
        return _described(place, keys, model, parts)
    if own is not None:
        return _described(own, keys, model, parts)
    asked = HubName.of(model)
    if asked is not None:
        return _hub(asked, keys)
    known = {*presets, *shipped_names("runs"), *shipped_names("models")}
    raise ConfigError(
        f"{model} is no preset, recipe, folder, file or hub name like 'org/model'. {did_you_mean(model, known)}"
    )


def _keys(keys: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Overrides of a model that no recipe is around: a table of `model`, and from those of `train` fields of Asked."""
    layer = as_layer(keys)
    for word in layer:
        if word not in ("model", "train"):
            raise ConfigError(f"{word}.… decides nothing that is planned here. Keys begin with model. or train.")
    for word, table in layer.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{word}={table!r}: needs a key below it, for example model.n_layers=8")
    trained = {}
    if "train" in layer:
        given = layer["train"]
        micro = given.get("micro_batch")
        rows = micro if isinstance(micro, int) and micro > 0 else 1
        try:
            found = TrainConfig.model_validate({"steps": 0, "batch_size": rows, **given})
        except ConfigError as error:
            raise ConfigError(f"train.{error}") from None
        if "steps" in given and found.context is None:
            raise ConfigError("train.steps says how many tokens there are only with train.context=…. Or use --tokens.")
        trained = wishes(found, found.context)
    return layer.get("model", {}), trained


def _overridden(config: ModelConfig, table: dict[str, Any]) -> ModelConfig:
    return _merged(config.model_dump(), table) if table else config


def _merged(below: dict[str, Any], table: dict[str, Any]) -> ModelConfig:
    """The model that `table` makes of the one `below`."""
    try:
        return ModelConfig.model_validate(merge_stacks([below, table]) if table else below)
    except PydanticCustomError as error:  # a rule that was broken before the whole could be checked
        raise ConfigError(f"model.{error}") from None


def _recipe(model: str, keys: Sequence[str]) -> Source:
    recipe = read(model, keys, model_of=lambda init: source(init).config).recipe
    notes = _of_tuning(recipe)
    config = recipe.model
    if config.vocab_size is None:
        size, why = _vocabulary(recipe)
        config = config.with_vocab(size)
        notes.append(f"vocab_size={size}: {why}")
    return Source(config, model, "recipe", _trained(recipe), notes=tuple(notes))


def _trained(recipe: Recipe) -> dict[str, Any]:
    """How a recipe trains."""
    from onehop.cli.plan_rows import have_places  # numpy loads only here

    return wishes(recipe.train, recipe.train.context or recipe.model.max_len, packed=have_places(recipe))


def _of_tuning(recipe: Recipe) -> list[str]:
    """What of a recipe the plan does not follow."""
    asked = "tune.lora" if recipe.tune.lora is not None else "tune.freeze" if recipe.tune.freeze else None
    return [] if asked is None else [f"{asked} is left out: training is planned as if every weight learned"]


def _vocabulary(recipe: Recipe) -> tuple[int, str]:
    """How many ids the recipe's tokenizer will have, and how that is known."""
    data = recipe.data
    if data.tokenizer == "bpe":
        return data.vocab_size, "data.vocab_size, which a trained bpe may fall short of"
    file = Path(data.tokenizer)
    if file.is_file():
        from onehop.formats.folder import read_json

        found = read_json(file)
        model, added_tokens = found.get("model"), found.get("added_tokens") or []
        if not isinstance(model, dict) or not all(isinstance(row, dict) for row in added_tokens):
            raise ConfigError(f"{file} is no tokenizer.json: it has no table of a model. Check data.tokenizer.")
        added = [row.get("id", -1) for row in added_tokens]
        return max(len(model.get("vocab", ())), *(n + 1 for n in added), 1), f"the ids of {file}"
    raise ConfigError(
        f"data.tokenizer={data.tokenizer} gives as many ids as the text has characters. Add model.vocab_size=…, "
        "for example 100."
    )


def _json(file: Path, keys: Sequence[str], parts: Sequence[str | Path]) -> Source:
    """A config.json of Hugging Face or of onehop, under any name; or a recipe."""
    from onehop.formats.family import read_config
    from onehop.formats.folder import read_json

    raw = read_json(file)
    if "model" in raw and "model_type" not in raw:
        return _recipe(str(file), keys)
    try:
        own = "model_type" not in raw and "d_model" in raw
        config = model_from_dict(raw, parts=parts) if own else read_config(raw)
    except OnehopError as error:
        raise type(error)(f"{file}: {error}") from error
    table, trained = _keys(keys)
    return Source(_overridden(config, table), str(file), "config", trained, dtype=_dtype(raw))


def _dtype(raw: dict[str, Any]) -> str | None:
    """The type of numbers that a config.json names."""
    found = raw.get("dtype") or raw.get("torch_dtype")
    return found if found in ("float32", "bfloat16", "float16") else None


def _of_kind(folder: Path, kind: str | None = None) -> Path | None:
    """The GGUF file of that kind in a folder, or its best; None where there is none."""
    from onehop.formats.gguf.choose import pick  # the families' tables load only for files

    return pick(folder, kind)


def _one_file(path: Path) -> Path:
    """The GGUF file that is taken of a folder without a config.json; the path itself otherwise."""
    if not path.is_dir() or (path / CONFIG).is_file():
        return path
    return _of_kind(path) or path


def _described(place: Path, keys: Sequence[str], name: str, parts: Sequence[str | Path]) -> Source:
    """A folder or a GGUF file, by its config or header."""
    from onehop.formats.folder import describe

    found = describe(place, parts=parts)
    run = _run(found.folder / RECIPE) if found.kind == "onehop" else None
    of_run = [] if run is None else [word for word in keys if word.strip().startswith("train.")]
    table, trained = _keys([word for word in keys if word not in of_run])
    config = _overridden(found.config, table)
    stored = loads = None
    if found.header is not None and not table:
        loads = found.header.loads
        stored = float(sum(place.nbytes for place in found.header.tensors.values()))
    notes = [f"taking {place.name}"] if found.header is not None and place != Path(name) else []
    if run is not None:
        run = read(found.folder / RECIPE, of_run).recipe if of_run else run
        trained, notes = _trained(run), [*notes, *_of_tuning(run)]
    return Source(config, name, found.kind, trained, stored, _loaded(found), loads, tuple(notes))


def _loaded(found: "Described") -> str | None:
    """The type that onehop loads a folder in: that of its weights, or what it says of quantised or unreadable ones."""
    from onehop.formats.quantised import SAID
    from onehop.formats.safetensors_header import stored_dtype

    said = _dtype(found.raw)
    if found.header is not None or any(found.raw.get(key) for key in SAID):
        return said
    try:
        return stored_dtype(found.folder) or said
    except CheckpointError:  # a plan needs no weights
        return said


def _run(recipe: Path) -> Recipe | None:
    """The recipe beside a run's weights; one of an older version says nothing about the model."""
    try:
        return read(recipe).recipe if recipe.is_file() else None
    except OnehopError:
        return None


def _hub(asked: HubName, keys: Sequence[str]) -> Source:
    """The config of a model on the hub: that one file, from the local cache or fetched."""
    if asked.kind is not None:
        raise CheckpointError(
            f"{asked.given} is a GGUF file on the hub, whose header is in the file, and plan fetches configs only. "
            "Give the file once it is here, or the hub name of a model with a config.json."
        )
    import huggingface_hub.utils

    huggingface_hub.utils.logging.set_verbosity_error()  # a refusal is one line, and not its retries
    try:
        file = Path(huggingface_hub.hf_hub_download(asked.name, CONFIG, revision=asked.revision))
    except (OSError, ValueError) as error:  # all that huggingface_hub raises is one of these
        raise CheckpointError(
            f"{asked.given} is no folder here, and as a hub name its config cannot be fetched: "
            f"{why_not_fetched(error, revision=asked.revision)}. Or give a config.json."
        ) from error
    return replace(_json(file, keys, ()), name=asked.given, kind="hub")
