"""Keys of layers that differ in kind: rows for each kind, and keys that say which layer is of which. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onehop.config.model import BlockConfig, ModelConfig
from onehop.formats.by_layer import each_layer, stack
from onehop.formats.keys import Json, KeyRow, nested


@dataclass(frozen=True)
class Mixed:
    """Rows for each kind of layer; rows of a kind that no layer has are neither read nor written.

    `keys` are those from which `kinds` tells each layer's kind; `says` writes them; `kind` names a block's.
    """

    keys: str
    rows: Mapping[str, Sequence[KeyRow]]
    kinds: Callable[[Json], list[str]]
    kind: Callable[[BlockConfig], str]
    says: Callable[[ModelConfig], Json]

    @property
    def names(self) -> tuple[str, ...]:
        rows = (name for some in self.rows.values() for row in some for name in row.names)
        return (*self.keys.split(), *dict.fromkeys(rows))

    def read(self, raw: Json) -> Json:
        kinds = self.kinds(raw)
        blocks: dict[str, Json] = {}
        for kind in dict.fromkeys(kinds):
            paths: Json = {}
            for row in self.rows[kind]:
                paths |= row.read(raw)
            blocks[kind] = nested(paths)
        return stack(kinds, blocks)

    def write(self, config: ModelConfig) -> Json:
        out: Json = {}
        for kind in dict.fromkeys(each_layer(config, self.kind)):
            block = next(block for block in config.layers() if self.kind(block) == kind)
            alone = config.model_copy(update={"pattern": (block.name,)})  # rows look at the first layer
            for row in self.rows[kind]:
                out |= row.write(alone)
        return out | self.says(config)
