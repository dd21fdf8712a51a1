"""From one layout to another: folder to folder, to GGUF and back, with a report of every tensor."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from onehop.base.errors import CheckpointError, ConfigError
from onehop.config.stretch import expected_training
from onehop.formats.family import family_of
from onehop.formats.folder import GGUF, Described, describe
from onehop.formats.gguf.architecture import write_config
from onehop.formats.layout import Family
from onehop.formats.table import Claim, claims
from onehop.lm.language_model import LanguageModel
from onehop.lm.load import load
from onehop.model.transformer import Transformer
from onehop.weights.gguf_files import type_of
from onehop.weights.locate import locate
from onehop.weights.native import same_names
from onehop.weights.reshape import POOLED, fewer_kv_heads, longer
from onehop.weights.source import claims_of, tensors_of
from onehop.weights.target import check_free, check_name


@dataclass(frozen=True)
class Moved:
    """What became of a tensor, or of several: their names in the source, in the target, and the operations between."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    operation: str


@dataclass(frozen=True)
class Converted:
    """What was written, and how: `notes` are for people."""

    path: Path
    format: str
    dtype: str
    tensors: list[Moved]
    notes: list[str] = field(default_factory=list)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    format: str | None = None,
    dtype: str | None = None,
    kv_heads: int | None = None,
    context: int | None = None,
    rope: str | None = None,
    parts: Iterable[str | Path] = (),
    adapter: str | Path | None = None,
    overwrite: bool = False,
) -> Converted:
    """Read a model and write it in another layout, whole or not at all.

    format None: gguf for a target that ends in .gguf, else hf where that layout can hold the model, else onehop. dtype
    None: the source's own. adapter: a folder with one, to be added. kv_heads: average key and value heads. context:
    stretch rotary positions, as `rope` says (None: yarn). overwrite: replace a file or a model that is there, or write
    among other files; the source and the folder of a run are refused even so.
    """
    if rope is not None and context is None:
        raise ConfigError(f"rope={rope} stretches nothing without a context: give extend-context, or leave rope out.")
    target, place = _target(target, format), locate(source)
    _refuse_itself(place, target)
    check_free(target, overwrite=overwrite)
    quantised = _quantised(dtype, target)
    lm = load(place, dtype=None if quantised else dtype, parts=parts, adapter=adapter, report=_silent)
    before = _made_of(describe(place, parts=parts), lm.model)
    notes = _reshape(lm, kv_heads=kv_heads, context=context, rope=rope or "yarn")
    if lm.tokenizer is not None and lm.tokenizer.settings.doubt is not None:
        notes.append(f"the tokenizer is in doubt as before: {lm.tokenizer.settings.doubt}")
    chosen = format or _format_for(target, lm)
    family = _family(lm, chosen)
    if chosen == "hf":
        lm.family = family
    lm.save(target, format=chosen, dtype=dtype)
    own = str(lm.model.embed.tokens.weight.dtype).removeprefix("torch.")
    moved = _report(before, _claims(lm.model, family), pooled=kv_heads is not None)
    return Converted(target, chosen, dtype or own, moved, notes)


def _silent(line: str) -> None:
    """Nothing is generated here, so there is nothing to warn of."""


def _reshape(lm: LanguageModel, *, kv_heads: int | None, context: int | None, rope: str) -> list[str]:
    """Change the model's architecture as asked, and say what it expects then."""
    notes = []
    if kv_heads is not None:
        have = next(lm.config.layers()).attention.n_kv_heads
        lm.model = fewer_kv_heads(lm.model, kv_heads)
        notes.append(
            f"{have} key/value heads became {kv_heads} by averaging: train on for about 5 % of the pre-training steps "
            "before use (arXiv:2305.13245, section 2.1)"
        )
    if context is not None:
        factor = context / lm.config.max_len
        lm.model = longer(lm.model, context, rope=rope)
        notes.append(f"expects {expected_training(rope, factor)}")
    return notes


def _made_of(described: Described, model: Transformer) -> tuple[Claim, ...]:
    with tensors_of(described) as tensors:
        return claims_of(described, tensors, model)


def _claims(model: Transformer, family: Family | None) -> tuple[Claim, ...]:
    """Which tensors of a layout are which of ours; onehop's own has our names."""
    return same_names(model) if family is None else tuple(claims(family.tensors, model.config))


def _report(before: Iterable[Claim], after: Iterable[Claim], *, pooled: bool) -> list[Moved]:
    """For everything that was written: what it was made of, and how."""
    origin = {name: claim for claim in before for name in claim.ours}
    out = []
    for claim in after:
        found = list(dict.fromkeys(origin[name] for name in claim.ours if name in origin))
        steps = [] if found else ["zeros, which the source left out"]
        steps += [f"{op}, read" for op in dict.fromkeys(c.op for c in found) if op != "same"]
        steps += ["mean of heads"] if pooled and any(name.endswith(POOLED) for name in claim.ours) else []
        steps += [f"{claim.op}, written"] if claim.op != "same" else []
        theirs = tuple(dict.fromkeys(name for c in found for name in c.theirs))
        out.append(Moved(theirs, claim.theirs, "; ".join(steps) or "same"))
    return out


def _target(name: str | Path, format: str | None) -> Path:
    """The target, whose name suits the format; and is not NAME.gguf:KIND, which chooses among files that are there."""
    file, colon, kind = str(name).rpartition(":")
    if colon and file.endswith(GGUF):
        raise ConfigError(f"target={name}: the kind of a file that is written is --dtype {kind.lower() or 'q8_0'}.")
    check_name(name, format)
    return Path(name)


def _refuse_itself(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        raise CheckpointError(f"{target} is the source itself. Name another target.")


def _quantised(dtype: str | None, target: Path) -> bool:
    """Whether the dtype is one of GGUF files alone. Raises ConfigError for one that the target cannot have."""
    if target.suffix == GGUF and dtype is not None:
        type_of(str(dtype).removeprefix("torch."))
    elif dtype == "q8_0":
        raise ConfigError("dtype=q8_0 exists in GGUF files only. Name a target that ends in .gguf.")
    return dtype == "q8_0"


def _format_for(target: Path, lm: LanguageModel) -> str:
    if target.suffix == GGUF:
        return "gguf"
    try:
        _family(lm, "hf")
    except ConfigError:
        return "onehop"
    return "hf"


def _family(lm: LanguageModel, format: str) -> Family | None:
    """The layout to write: the source's own, where it has one that can hold the model as it is now."""
    if format == "onehop":
        return None
    if format == "gguf":
        return write_config(lm.config, prefer=None if lm.family is None else lm.family.name)[0]
    if lm.family is None:
        return family_of(lm.config)
    lm.family.write_config(lm.config)
    return lm.family
