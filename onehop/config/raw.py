"""Config as nested dicts, before it is checked: layers of them merged, the later over the earlier."""

from collections.abc import Mapping, Sequence
from typing import Any

from onehop.base.choices import Choices
from onehop.config.attention import ATTENTIONS, SCORES
from onehop.config.ffn import FFNS
from onehop.config.norm import NORMS
from onehop.config.part import broken_rule
from onehop.config.position import POSITIONS, SCALINGS
from onehop.config.task import TASKS

Raw = dict[str, Any]

# Fields that come in kinds: when a later layer changes the kind, keys that the new kind lacks are dropped.
KINDS: dict[str, Choices[Any]] = {
    "attention": ATTENTIONS,
    "cross": ATTENTIONS,
    "ffn": FFNS,
    "norm": NORMS,
    "final_norm": NORMS,
    "position": POSITIONS,
    "scaling": SCALINGS,
    "score": SCORES,
    "task": TASKS,
}
# Fields of such a name that are plain words, by the table that they stand in.
WORDS: dict[str, tuple[str, ...]] = {"embed": ("position",)}
# Fields of a block that may be given once for all blocks of a stack.
COMMON = ("attention", "cross", "ffn", "norm", "norm_in", "norm_out", "parallel", "residual_scale")
# Keys that only serve one value of another key: when a later layer changes that one, an earlier layer's are dropped.
SERVES: dict[str, dict[str, tuple[str, ...]]] = {
    "ffn": {"balance": ("balance_weight", "balance_rate")},
    "data": {
        "corpus": ("files", "mixture", "n_documents", "separator", "text_field"),
        "files": ("corpus", "mixture", "n_documents", "separator", "text_field"),
        "mixture": ("corpus", "files", "n_documents", "separator", "text_field"),
        "tokenizer": ("vocab_size",),
    },
}


def merge(low: Any, high: Any, field: str = "") -> Any:
    """`high` laid over `low`: tables key by key, everything else replaced."""
    table = KINDS.get(field)
    if table is not None:
        low, high = _as_table(low, table), _as_table(high, table)
    if not (isinstance(low, dict) and isinstance(high, dict)):
        return high
    kind = high.get("kind")
    if table is not None and isinstance(kind, str) and kind != low.get("kind") and kind in table:
        low = {key: value for key, value in low.items() if key in table.get(kind).model_fields}
    for switch, served in SERVES.get(field, {}).items():
        if switch in high and high[switch] != low.get(switch):
            low = {key: value for key, value in low.items() if key not in served}
    words = WORDS.get(field, ())
    return {**low, **{k: merge(low.get(k), value, "" if k in words else k) for k, value in high.items()}}


def merge_stacks(layers: Sequence[Raw], where: str = "") -> Raw:
    """Layers of a model or encoder table, first to last, as one table whose blocks are written out by name.

    Within a layer a block's own keys win over the common ones; a later layer wins over an earlier one, and its
    `pattern` drops the blocks of earlier layers that it does not name. `where` is the path of the table.
    """
    layers = [with_named_blocks(layer, where) for layer in layers]
    names = _block_names(layers)
    out: Raw = {}
    for layer in layers:
        out = merge(out, {k: v for k, v in layer.items() if k not in (*COMMON, "blocks", "encoder")})
    out["blocks"] = {name: {} for name in names}
    for layer in layers:
        common = {k: layer[k] for k in COMMON if k in layer}
        for name in names:
            own = _merge_block(common, layer.get("blocks", {}).get(name, {}))
            out["blocks"][name] = _merge_block(out["blocks"][name], own)
    given = [layer["encoder"] for layer in layers if "encoder" in layer]
    if given:
        out["encoder"] = _encoder(given, where)
    return out


def block_names(layer: Raw, where: str) -> list[str]:
    """The blocks that one layer of a stack names."""
    return list(with_named_blocks(layer, where).get("blocks", {}))


def names_in(pattern: Any) -> list[str]:
    """The block names of a pattern in any of its forms."""
    words = pattern.split(",") if isinstance(pattern, str) else pattern
    return [str(word).strip() for word in words] if isinstance(words, list | tuple) else []


def _merge_block(low: Any, high: Any) -> Any:
    """One block over another; what is not a table is left for the block's own check."""
    return {**low, **{k: merge(low.get(k), v, k) for k, v in high.items()}} if isinstance(high, dict) else high


def _encoder(given: Sequence[Any], where: str) -> Any:
    """The encoder tables since the last one that said none."""
    if given[-1] is None or given[-1] == "none":
        return None
    since = max((i + 1 for i, table in enumerate(given) if table is None or table == "none"), default=0)
    tables = given[since:]
    return merge_stacks(tables, f"{where}encoder.") if all(isinstance(t, dict) for t in tables) else tables[-1]


def _block_names(layers: Sequence[Raw]) -> list[str]:
    names: dict[str, None] = {}
    for layer in layers:
        own = layer.get("blocks", {})
        if layer.get("pattern"):
            named = names_in(layer["pattern"])
            names = {name: None for name in names if name in named}
        names.update(dict.fromkeys(own))
    return list(names) or ["block"]


def with_named_blocks(layer: Raw, where: str) -> Raw:
    """Blocks as {name: table}, also where they came as a list of tables or of finished configs."""
    blocks = layer.get("blocks")
    if blocks is None or isinstance(blocks, Mapping):
        named = {str(k): _plain(v) for k, v in (blocks or {}).items()}
    elif isinstance(blocks, list | tuple):
        named = {}
        for block in map(_plain, blocks):
            if not isinstance(block, dict) or not isinstance(block.get("name"), str):
                raise broken_rule(f"{where}blocks: each block of a list needs a name")
            if block["name"] in named:
                raise broken_rule(f"{where}blocks: the name {block['name']!r} occurs twice. Give each block its own.")
            named[block["name"]] = block
    else:
        raise broken_rule(f"{where}blocks={blocks!r}: needs a table for each block")
    named = {
        name: {k: v for k, v in block.items() if k != "name"} if isinstance(block, dict) else block
        for name, block in named.items()
    }
    out = {k: (_plain(v) if k in (*COMMON, "encoder") else v) for k, v in layer.items()}
    return {**out, "blocks": named} if named else {k: v for k, v in out.items() if k != "blocks"}


def _as_table(value: Any, table: Choices[Any]) -> Any:
    """The short form 'rope' as {'kind': 'rope'}, and the word none as None where no kind is called so."""
    if not isinstance(value, str):
        return value
    return None if value == "none" and "none" not in table else {"kind": value}


def _plain(value: Any) -> Any:
    """A finished config as the dict that makes it again."""
    return value.model_dump() if hasattr(value, "model_dump") else value
