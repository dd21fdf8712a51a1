"""The presets as finished configs: `onehop.presets["gpt2"]`."""

from collections.abc import Iterator, Mapping

from onehop.base.errors import ConfigError, did_you_mean
from onehop.config.model import ModelConfig
from onehop.config.presets import PRESETS


class Presets(Mapping[str, ModelConfig]):
    """Name -> ModelConfig, built when asked for. An unknown name is refused with the nearest one."""

    def __getitem__(self, name: str) -> ModelConfig:
        if name not in PRESETS:
            raise ConfigError(f"preset {name!r} does not exist. {did_you_mean(str(name), PRESETS)}")
        return ModelConfig.model_validate(dict(PRESETS[name]))

    def __contains__(self, name: object) -> bool:
        return name in PRESETS

    def __iter__(self) -> Iterator[str]:
        return iter(PRESETS)

    def __len__(self) -> int:
        return len(PRESETS)

    def __repr__(self) -> str:
        return f"presets: {', '.join(PRESETS)}"


presets = Presets()
