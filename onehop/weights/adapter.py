"""Low-rank adapters in PEFT's format: adapter_config.json, and adapter_model.safetensors by a layout's own names.

A map that a layout keeps fused with others has one adapter with them, whose inner width is all of theirs together.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onehop.base.errors import CheckpointError, ConfigError
from onehop.formats.family import family_of
from onehop.formats.folder import read_json
from onehop.formats.layout import Family
from onehop.formats.table import Claim, claims
from onehop.model.transformer import Transformer
from onehop.parts.linear import Linear
from onehop.parts.lora import Adapted, LowRank, adapt, adapters_of
from onehop.weights.native import same_names, write_json
from onehop.weights.ops import OPS
from onehop.weights.place import new_files
from onehop.weights.safetensors_files import read_tensors, write_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
PREFIX, DOWN, UP, WEIGHT = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".weight"
# Settings of PEFT that would make another function of the same tensors.
OTHERWISE = {
    "use_dora": False, "bias": "none", "modules_to_save": None, "lora_bias": False, "layer_replication": None,
    "trainable_token_indices": None, "alora_invocation_tokens": None, "use_qalora": False,
}  # fmt: skip
# How PEFT may begin an adapter without changing the base; with any other way (pissa, corda, olora, loftq, lora_ga) the
# tensors belong to another base than the one that is named.
BEGUN = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
ROWS = {  # what an operation on matrices does to their rows; an adapter's `up` has the same rows
    "same": "same", "transpose": "same", "turned": "turned", "turned_last": "turned_last", "rows": "rows",
    "columns": "rows", "grouped_qkv": "grouped_qkv",
}  # fmt: skip
STORED_TURNED = ("transpose", "columns")  # PEFT wants to know that the matrices are stored (d_in, d_out)


def save_adapter(model: Transformer, folder: str | Path, *, base: str, family: Family | None = None) -> None:
    """Write the adapters of a model as PEFT reads them, whole or not at all.

    base: what they were trained on. family: the layout whose names they take (None: the first that can express the
    model, else our own, which `read_adapter` knows too).
    """
    with new_files(Path(folder)) as new:
        write_adapter(model, new, base=base, family=family)


def write_adapter(
    model: Transformer,
    folder: Path,
    *,
    base: str,
    family: Family | None = None,
    adapters: Mapping[str, LowRank] | None = None,
) -> None:
    """As `save_adapter`, into a folder that the caller puts in place; adapters: others than the model has now."""
    found = adapters_of(model) if adapters is None else adapters
    if not found:
        raise ConfigError("this model has no adapters to save. Train some with tune.lora.rank=8.")
    tensors: dict[str, Tensor] = {}
    scales: dict[str, tuple[int, float]] = {}
    turned = False
    for claim in _claims(model, family):
        here = [found.get(name.removesuffix(WEIGHT)) for name in claim.ours]
        if any(adapter is not None for adapter in here):
            path = claim.theirs[0].removesuffix(WEIGHT)
            joint = _joint(claim, here, [_map(model, name.removesuffix(WEIGHT)).out_features for name in claim.ours])
            tensors[f"{PREFIX}{path}{DOWN}"], tensors[f"{PREFIX}{path}{UP}"] = joint.down, joint.up
            scales[path] = (joint.down.size(0), joint.scale)
            turned = turned or claim.op in STORED_TURNED
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / CONFIG, _config(scales, base=base, turned=turned, encoder=model.encoder is not None))


def read_adapter(model: Transformer, folder: str | Path, *, family: Family | None = None) -> dict[str, LowRank]:
    """PEFT's adapter in `folder` as adapters of this model's linear maps, by name.

    Raises CheckpointError for another kind of adapter, for settings that would give another function, and for tensors
    that belong to no map of this model or have another shape.
    """
    folder, config = Path(folder), adapter_config(folder)
    tensors = _read(folder / WEIGHTS)
    out: dict[str, LowRank] = {}
    used: set[str] = set()
    for claim in (*_claims(model, family), *_linear(same_names(model), model)):
        path = claim.theirs[0].removesuffix(WEIGHT)
        names = [f"{PREFIX}{path}{end}" for end in (DOWN, UP)]
        if used.issuperset(names) or not tensors.keys() >= set(names):
            continue
        used.update(names)
        down, up = (tensors[name] for name in names)
        maps = [name.removesuffix(WEIGHT) for name in claim.ours]
        _check_shapes(down, up, [_map(model, name) for name in maps], where=f"{folder / WEIGHTS}: {path}")
        rows = OPS.get(ROWS[claim.op]).load([up], claim.sizes)
        scale = _scale(config, path, down.size(0))
        out |= {name: LowRank(down, part.contiguous(), scale) for name, part in zip(maps, rows, strict=True)}
    if tensors.keys() - used:
        raise CheckpointError.names(absent=(), unclaimed=tensors.keys() - used, where=str(folder / WEIGHTS))
    if not out:
        raise CheckpointError(f"{folder / WEIGHTS} holds no adapter.")
    return out


def adapter_config(folder: str | Path) -> dict[str, Any]:
    """What an adapter's folder says of it. Raises CheckpointError for another kind of adapter, and for none."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}, so it is no adapter. Give the folder that PEFT saved.")
    config = read_json(folder / CONFIG)
    _check(config, folder)
    return config


def load_adapter(model: Transformer, folder: str | Path, *, family: Family | None = None) -> None:
    """Put PEFT's adapter in `folder` beside the maps of a model, and freeze all else."""
    adapt(model, read_adapter(model, folder, family=family))


def _claims(model: Transformer, family: Family | None) -> Sequence[Claim]:
    """Where a layout keeps the model's linear maps."""
    if family is None:
        try:
            family = family_of(model.config)
        except ConfigError:
            return _linear(same_names(model), model)
    return _linear(claims(family.tensors, model.config), model)


def _linear(rows: Iterable[Claim], model: Transformer) -> Sequence[Claim]:
    """Those of the claims that are about weights of linear maps alone, in names that tell nothing of adapters."""
    plain = (replace(c, theirs=_plain(c.theirs), ours=_plain(c.ours)) for c in rows)
    return [
        claim
        for claim in plain
        if claim.op in ROWS and len(claim.theirs) == 1 and all(_is_linear(model, name) for name in claim.ours)
    ]


def _plain(names: tuple[str, ...]) -> tuple[str, ...]:
    """`….wq.base.weight`, as it is called beside an adapter, by the name that it has without one."""
    return tuple(name.replace(f".base{WEIGHT}", WEIGHT) for name in names)


def _is_linear(model: Transformer, name: str) -> bool:
    path, dot, leaf = name.rpartition(".")
    try:
        return dot + leaf == WEIGHT and isinstance(model.get_submodule(path), Linear | Adapted)
    except AttributeError:
        return False


def _map(model: Transformer, name: str) -> Linear:
    found = model.get_submodule(name)
    base: Any = found.base if isinstance(found, Adapted) else found
    assert isinstance(base, Linear), f"{name} is no linear map"
    return base


def _joint(claim: Claim, adapters: Sequence[LowRank | None], widths: Sequence[int]) -> LowRank:
    """The adapters of the maps that a layout keeps in one matrix, as one: inner widths side by side."""
    there = [adapter for adapter in adapters if adapter is not None]
    scale, rank, at = there[0].scale, sum(adapter.down.size(0) for adapter in there), 0
    ups = []
    for adapter, width in zip(adapters, widths, strict=True):
        up = there[0].up.new_zeros(width, rank)
        if adapter is not None:
            own = adapter.down.size(0)
            up[:, at : at + own] = adapter.up * (adapter.scale / scale)
            at += own
        ups.append(up)
    (joint,) = OPS.get(ROWS[claim.op]).save(ups, claim.sizes)
    return LowRank(torch.cat([adapter.down for adapter in there]), joint.contiguous(), scale)


def _config(scales: Mapping[str, tuple[int, float]], *, base: str, turned: bool, encoder: bool) -> dict[str, Any]:
    """The adapter_config.json; a map of another inner width or scale than most has a row of its own."""
    ranks = [rank for rank, _ in scales.values()]
    usual = max(set(ranks), key=lambda rank: (ranks.count(rank), -rank))
    alpha = next(rank * scale for rank, scale in scales.values() if rank == usual)
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM" if encoder else "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": usual,
        "lora_alpha": _whole(alpha),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(scales),
        "rank_pattern": {path: rank for path, (rank, _) in scales.items() if rank != usual},
        "alpha_pattern": {
            path: _whole(rank * scale)
            for path, (rank, scale) in scales.items()
            if not math.isclose(rank * scale, alpha, rel_tol=1e-12)
        },
        "fan_in_fan_out": turned,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


def _whole(x: float) -> float:
    """16.0 as 16."""
    return int(x) if x == int(x) else x


def _check(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse what would make another function of the tensors."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{folder / CONFIG}: peft_type={kind!r} is no low-rank adapter. Give one of LORA.")
    for key, plain in OTHERWISE.items():
        if config.get(key, plain) not in (plain, [], {}, None):
            raise _otherwise(folder, key, config[key])
    if config.get("init_lora_weights") not in BEGUN:
        raise _otherwise(folder, "init_lora_weights", config["init_lora_weights"])
    own = config.get("alpha_pattern") or {}
    if not isinstance(own, dict) or not all(re.fullmatch(r"\^?[\w.]+", key) for key in own):
        raise CheckpointError(f"{folder / CONFIG}: alpha_pattern={own!r} holds more than names of modules and numbers.")


def _otherwise(folder: Path, key: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{folder / CONFIG}: {key}={value!r} changes what the adapter does, and is not known here. Merge the adapter "
        "with PEFT (merge_and_unload), and open the result."
    )


def _scale(config: Mapping[str, Any], path: str, rank: int) -> float:
    """What multiplies an adapter: α / rank or, with use_rslora, α / √rank (Kalajdzievski 2023, arXiv:2312.03732).

    A path's own α in alpha_pattern counts before the common one.
    """
    own = config.get("alpha_pattern") or {}
    fits = (a for key, a in own.items() if re.match(rf"(.*\.)?({key})$", path))  # as PEFT does it
    alpha = next(fits, config.get("lora_alpha"))
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise CheckpointError(f"{CONFIG}: lora_alpha={alpha!r} is no number.")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read(file: Path) -> dict[str, Tensor]:
    """Every tensor of the adapter, in float32."""
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: an adapter's weights. (Pickles, adapter_model.bin, are never read.)")
    return {name: tensor.float() for name, tensor in read_tensors(file).items()}


def _check_shapes(down: Tensor, up: Tensor, maps: Sequence[nn.Linear], *, where: str) -> None:
    d_in, d_out = maps[0].in_features, sum(m.out_features for m in maps)
    rank = max(1, down.size(0))
    needed = ((rank, d_in), (d_out, rank))
    if (tuple(down.shape), tuple(up.shape)) != needed:
        raise CheckpointError(
            f"{where}: its adapter has the shapes {tuple(down.shape)} and {tuple(up.shape)}, and this model needs "
            f"{needed[0]} and {needed[1]}. Give the model that it was trained on."
        )
