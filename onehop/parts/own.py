"""Parts of a user's own: one decorator adds a named part and its config to the tables that recipes choose from."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from onehop.base.choices import Choices
from onehop.base.errors import ConfigError, did_you_mean
from onehop.config import attention as attention_config
from onehop.config import ffn as ffn_config
from onehop.config import norm as norm_config
from onehop.config import position as position_config
from onehop.config.part import Kind
from onehop.parts import attention, ffn, norm, position

SCORES: Choices[Callable[..., nn.Module]] = Choices("attention.score", {})

# what a user may add -> the table of configs, the table of parts, and the base its config must have
TABLES: dict[str, tuple[Choices[Any], Choices[Any], type[Kind]]] = {
    "attention": (attention_config.ATTENTIONS, attention.ATTENTIONS, attention_config.AttentionConfig),
    "position": (position_config.POSITIONS, position.POSITIONS, position_config.PositionConfig),
    "ffn": (ffn_config.FFNS, ffn.FFNS, ffn_config.FFNConfig),
    "norm": (norm_config.NORMS, norm.NORMS, norm_config.NormConfig),
    "score": (attention_config.SCORES, SCORES, attention_config.ScoreConfig),
}
C = TypeVar("C", bound=type)


def part(what: str, config: type[Kind]) -> Callable[[C], C]:
    """Add the decorated class to the table `what` (attention, position, ffn, norm or score) under the kind of `config`.

    Constructors: norm(width, config); ffn(d_model, config); position(config, attention_config);
    attention as GroupedQueryAttention; score(config, attention_config). Calls: norm(x) -> x; ffn(x, real=…) -> (y,
    None), x and y (B, T, C), `real` (B, T) tells tokens from padding; score(scores (B, H, T, S), positions of queries
    (B | 1, T), of keys (B | 1, S)) -> scores; position as PositionScheme, and one that biases scores also runs in the
    tiled kernel. What a constructor puts into parameters and buffers of its own is kept; parts of onehop in it (Linear,
    norms) start like all others of their kind.
    """
    if what not in TABLES:
        raise ConfigError(f"parts of your own can be: {', '.join(TABLES)}; not {what!r}. {did_you_mean(what, TABLES)}")
    configs, parts, base = TABLES[what]
    kind = config.model_fields["kind"].default if "kind" in config.model_fields else None
    if not issubclass(config, base) or not isinstance(kind, str):
        raise ConfigError(
            f"the config of your own {what} {config.__name__} needs {base.__name__} as base and a default kind"
        )

    def add(cls: C) -> C:
        wanted = position.PositionScheme if what == "position" else nn.Module
        if not issubclass(cls, wanted):
            raise ConfigError(f"your own {what} {cls.__name__} needs {wanted.__name__} as base")
        if what != "position" and cls.forward is nn.Module.forward:
            raise ConfigError(f"your own {what} {cls.__name__} has no method forward, which is how it is called")

        def made(*args: Any, **options: Any) -> nn.Module:
            with torch.device("cpu"):  # a model is laid out without memory, but nobody else knows these values
                return cls(*args, **options)

        source = inspect.getsourcefile(cls) or cls.__module__
        configs.add(kind, config, source=source)
        parts.add(kind, made, source=source)
        return cls

    return add
