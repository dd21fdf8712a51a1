"""Models whose layers differ: a table of blocks and the pattern in which they follow each other. No torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.config.model import BlockConfig, ModelConfig
from onehop.formats.keys import Json, Keys, number

MOST_LAYERS = 10_000  # a file that says more is damaged, or meant to do damage
SLIDING, FULL = "sliding_attention", "full_attention"


def layer_count(raw: Json, key: str = "num_hidden_layers") -> int:
    """The number of layers, for rules that speak of each. Raises CheckpointError for what cannot be one."""
    n = raw.get(key)
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_LAYERS:
        raise CheckpointError(f"config.json: {key}={n!r} should be a whole number from 1 to {MOST_LAYERS}.")
    return n


def listed(raw: Json, key: str, n: int, known: Sequence[Any]) -> list[Any] | None:
    """A list with one of the `known` values per layer; None where it is absent."""
    found = raw.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != n:
        raise CheckpointError(f"config.json: {key} should be a list of {n} values, one for each layer.")
    for value in found:
        if value not in known:
            words = ", ".join(map(str, known))
            raise CheckpointError(f"config.json: {key} has {value!r}, which is not known. Known: {words}.")
    return found


def stack(kinds: Sequence[str], blocks: Mapping[str, Json]) -> Json:
    """One kind per layer and a table for each kind -> our `blocks` and the shortest `pattern`."""
    n = len(kinds)
    period = next(p for p in range(1, n + 1) if all(kinds[i] == kinds[i % p] for i in range(n)))
    pattern = list(kinds[:period])
    return {"blocks": {name: blocks[name] for name in dict.fromkeys(pattern)}, "pattern": pattern}


def each_layer(config: ModelConfig, word: Callable[[BlockConfig], Any]) -> list[Any]:
    """One word per layer, for a list that a file carries."""
    return [word(block) for block in config.layers()]


def windows(raw: Json, kinds: Sequence[str], *, key: str = "sliding_window") -> Json:
    """Layers of the kinds `sliding_attention` and `full_attention`; the window's width stands under `key`."""
    width = raw.get(key)
    if SLIDING in kinds and width is None:
        raise CheckpointError(
            f"config.json: some layers are {SLIDING}, but {key} is missing or switched off. Give the window's width."
        )
    return stack(kinds, {SLIDING: {"attention": {"window": width}}, FULL: {"attention": {"window": None}}})


def kind_of(block: BlockConfig) -> str:
    """The word for a layer with or without a window."""
    return FULL if block.attention.window is None else SLIDING


def window_of(config: ModelConfig) -> int | None:
    """The one width of all windows, None where there is none. (Two widths do not survive being read back.)"""
    return next((block.attention.window for block in config.layers() if block.attention.window is not None), None)


def _late_windows(raw: Json) -> Json:
    """`use_sliding_window`: windows from layer `max_window_layers` on, or where `layer_types` says so."""
    n = layer_count(raw)
    width = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
    first = number("max_window_layers", raw.get("max_window_layers", 28), above=-1)
    kinds = [SLIDING if width is not None and i >= first else FULL for i in range(n)]
    return windows({"sliding_window": width}, listed(raw, "layer_types", n, (SLIDING, FULL)) or kinds)


def _write_late_windows(config: ModelConfig) -> Json:
    kinds, width = each_layer(config, kind_of), window_of(config)
    return {
        "use_sliding_window": width is not None,
        "sliding_window": width,
        "max_window_layers": kinds.index(SLIDING) if SLIDING in kinds else len(kinds),  # for readers without the list
        "layer_types": kinds,
    }


LATE_WINDOWS = Keys(
    "use_sliding_window sliding_window max_window_layers layer_types", _late_windows, _write_late_windows
)
