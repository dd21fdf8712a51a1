"""The model that a run begins with: fresh weights or a checkpoint's, what of it is frozen, adapters beside it."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from onehop.base.errors import ConfigError, did_you_mean
from onehop.base.units import human_count
from onehop.config.model import ModelConfig
from onehop.config.recipe import Recipe
from onehop.config.tune import TuneConfig, contradictions
from onehop.data.prepare import TRAINED
from onehop.formats.layout import Family
from onehop.model.build import build
from onehop.model.transformer import Transformer
from onehop.parts.linear import Linear
from onehop.parts.lora import LowRank, adapt, fresh
from onehop.text.tokenizer import Tokenizer
from onehop.training.width import transferred
from onehop.weights.open import open_model

ADAPTER_SEED = 1  # added to the run's, so that adapters are drawn apart from weights


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `tune.init` names: a model, its tokenizer, the token that its decoder starts with, and its layout."""

    model: Transformer
    tokenizer: Tokenizer | None
    start_id: int | None
    family: Family | None

    @classmethod
    def open(cls, recipe: Recipe, device: torch.device) -> "Checkpoint":
        """In float32, the precision of weights that learn. Raises ConfigError where the recipe's model is another."""
        init = str(recipe.tune.init)
        opened = open_model(init, dtype=torch.float32, device=device, parts=recipe.model.parts)
        for text in contradictions(recipe.model, opened.config, init):
            raise ConfigError(text)
        found = opened.tokenizer
        tokenizer = Tokenizer.load(found) if isinstance(found, Path) else found
        return cls(opened.model, tokenizer, opened.start_id, opened.family)

    def known(self, recipe: Recipe) -> dict[str, Any]:
        """What a lesson takes from it: the tokenizer (none, where the recipe has to name one) and the start token.

        Raises ConfigError for two tokenizers, and for none.
        """
        named = recipe.data.tokenizer not in TRAINED
        if self.tokenizer is not None and named:
            raise ConfigError(
                f"data.tokenizer={recipe.data.tokenizer} has no effect with tune.init={recipe.tune.init}, whose own "
                "tokenizer is used. Leave data.tokenizer out."
            )
        if self.tokenizer is None and not named:
            raise ConfigError(f"tune.init={recipe.tune.init} has no tokenizer. Name its own: data.tokenizer=PATH.")
        return {"tokenizer": self.tokenizer, "start_id": self.start_id}


def begin(recipe: Recipe, checkpoint: Checkpoint | None, *, device: torch.device) -> Transformer:
    """The model to train: parameters that need gradients are those that learn."""
    cfg = recipe.tune
    if checkpoint is None:
        model = build(transferred(recipe), seed=recipe.train.seed, device=device)
    else:
        model = _with_config(recipe.model, checkpoint.model)
    if cfg.lora is not None:
        adapt(model, _adapters(model, cfg, seed=recipe.train.seed + ADAPTER_SEED))
    freeze(model, cfg.freeze)
    return model.train()


def freeze(model: Transformer, patterns: tuple[str, ...]) -> None:
    """Let the parameters that match stay as they are. Raises ConfigError for a pattern without any, or if all match."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        found = [name for name in named if fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(f"tune.freeze={pattern} names no parameter. {did_you_mean(pattern, _known(named))}")
        for name in found:
            named[name].requires_grad_(False)
    if not any(p.requires_grad for p in named.values()):
        raise ConfigError(f"tune.freeze={','.join(patterns)} freezes every parameter: nothing is left to learn.")


def share(model: Transformer) -> str:
    """How many parameters learn, in words."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    every, learning = sum(n for n, _ in sizes), sum(n for n, learns in sizes if learns)
    return f"{human_count(learning)} of {human_count(every)} parameters learn ({learning / every:.2%})"


def _with_config(config: ModelConfig, model: Transformer) -> Transformer:
    """The checkpoint's model as the recipe has it, which may differ in dropout."""
    if config == model.config:
        return model
    other = build(config, device="meta")
    other.load_state_dict(model.state_dict(), assign=True)
    return other


def _adapters(model: Transformer, cfg: TuneConfig, *, seed: int) -> dict[str, LowRank]:
    """A fresh adapter for each linear map that is a target, in the order of their names."""
    assert cfg.lora is not None, "asked for by the caller"
    maps = {name: m for name, m in model.named_modules() if isinstance(m, Linear)}
    for pattern in cfg.lora.targets:
        if not any(fnmatchcase(name, pattern) for name in maps):
            raise ConfigError(f"tune.lora.targets={pattern} names no linear map. {did_you_mean(pattern, _known(maps))}")
    generator = torch.Generator().manual_seed(seed)
    chosen = {n: m for n, m in maps.items() if any(fnmatchcase(n, pattern) for pattern in cfg.lora.targets)}
    full = max((min(m.in_features, m.out_features) for m in chosen.values()), default=cfg.lora.rank)
    if cfg.lora.rank > full:
        raise ConfigError(
            f"tune.lora.rank={cfg.lora.rank} is more than any change of these maps can have. They take at most {full}."
        )
    return {n: fresh(m, rank=cfg.lora.rank, alpha=cfg.lora.alpha, generator=generator) for n, m in chosen.items()}


def _known(names: Iterable[str]) -> set[str]:
    """Patterns that name something: each name with * for the number of a layer, and each of its beginnings with .*"""
    words = [["*" if word.isdigit() else word for word in name.split(".")] for name in names]
    whole = {".".join(each) for each in words}
    return whole | {".".join([*each[:n], "*"]) for each in words for n in range(1, len(each))}
