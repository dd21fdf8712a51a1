"""onehop: describe a transformer, train it, look inside it and run it, with one definition of the model.

The public names below are looked up when they are first used, so that `import onehop` does not wait for torch.
"""

import importlib

TYPE_CHECKING = False  # as type checkers read it; `typing` and what refusals need are not loaded before Ctrl-C is heard

if TYPE_CHECKING:
    from onehop.config import ModelConfig, Recipe
    from onehop.config.named import presets
    from onehop.cost import plan
    from onehop.lm import LanguageModel, load
    from onehop.model import build
    from onehop.parts.attend import attend
    from onehop.parts.own import part
    from onehop.training import steps, train

__version__ = "0.1.0"

# public name -> the module that holds it, and its name there
_PUBLIC = {
    "LanguageModel": ("onehop.lm", "LanguageModel"),
    "ModelConfig": ("onehop.config", "ModelConfig"),
    "Recipe": ("onehop.config", "Recipe"),
    "attend": ("onehop.parts.attend", "attend"),
    "build": ("onehop.model", "build"),
    "load": ("onehop.lm", "load"),
    "part": ("onehop.parts.own", "part"),
    "plan": ("onehop.cost", "plan"),
    "presets": ("onehop.config.named", "presets"),
    "steps": ("onehop.training", "steps"),
    "train": ("onehop.training", "train"),
}

__all__ = [
    "LanguageModel", "ModelConfig", "Recipe", "__version__",
    "attend", "build", "load", "part", "plan", "presets", "steps", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The public name, from the module that holds it (PEP 562); it is kept, so the next look-up is an ordinary one."""
    if name not in _PUBLIC:
        from onehop.base.errors import did_you_mean

        raise AttributeError(f"onehop has no {name!r}. {did_you_mean(name, _PUBLIC)}")
    module, attribute = _PUBLIC[name]
    thing = getattr(importlib.import_module(module), attribute)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
