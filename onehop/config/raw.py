"""Config as nested dicts, before it is checked: layers of them merged, short forms written out."""

from collections.abc import Mapping, Sequence
from typing import Any

from onehop.base.choices import Choices
from onehop.base.errors import ConfigError
from onehop.config.attention import ATTENTIONS, SCORES
from onehop.config.ffn import FFNS
from onehop.config.norm import NORMS
from onehop.config.position import POSITIONS, SCALINGS

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
}
# Fields of a block that may be given once for all blocks of a stack.
COMMON = ("attention", "cross", "ffn", "norm", "norm_in", "norm_out", "parallel", "residual_scale")


def merge(low: Any, high: Any, field: str = "") -> Any:
    """`high` laid over `low`: tables key by key, everything else replaced."""
    table = KINDS.get(field)
    if table is not None and isinstance(low, dict) and isinstance(high, str):
        high = {"kind": high}
    if table is not None and isinstance(low, str) and isinstance(high, dict):
        low = {"kind": low}
    if not (isinstance(low, dict) and isinstance(high, dict)):
        return high
    kind = high.get("kind")
    if table is not None and kind is not None and kind != low.get("kind") and kind in table:
        low = {key: value for key, value in low.items() if key in table.get(kind).model_fields}
    return {**low, **{key: merge(low.get(key), value, key) for key, value in high.items()}}


def merge_stacks(layers: Sequence[Raw]) -> Raw:
    """Layers of a model or encoder table, first to last, as one table whose blocks are written out.

    Within a layer a block's own keys win over the common ones; a later layer wins over an earlier one.
    """
    layers = [_named_blocks(layer) for layer in layers]
    names = list(dict.fromkeys(name for layer in layers for name in layer.get("blocks", {}))) or ["block"]
    plain = [{k: v for k, v in layer.items() if k not in (*COMMON, "blocks", "encoder")} for layer in layers]
    out: Raw = {}
    for layer in plain:
        out = merge(out, layer)
    out["blocks"] = {name: {} for name in names}
    for layer in layers:
        common = {k: layer[k] for k in COMMON if k in layer}
        for name in names:
            own = merge(common, layer.get("blocks", {}).get(name, {}))
            out["blocks"][name] = merge(out["blocks"][name], own)
    encoders = [layer["encoder"] for layer in layers if layer.get("encoder")]
    if encoders:
        out["encoder"] = merge_stacks(encoders)
    return out


def expand_blocks(raw: Raw) -> Raw:
    """A model table with every block complete: common fields spread, n_kv_heads, d_head and pattern filled in."""
    out = merge_stacks([raw])
    for stack in (out, out.get("encoder")):
        if not stack:
            continue
        for block in stack["blocks"].values():
            _fill_heads(block, out.get("d_model"))
        stack["pattern"] = stack.get("pattern") or list(stack["blocks"])
        stack["blocks"] = [{"name": name, **block} for name, block in stack["blocks"].items()]
    return out


def _fill_heads(block: Raw, d_model: Any) -> None:
    for field in ("attention", "cross"):
        attention = block.get(field)
        if not isinstance(attention, dict) or not attention.get("n_heads"):
            continue
        attention = {k: v for k, v in attention.items() if v is not None or k not in ("n_kv_heads", "d_head")}
        attention.setdefault("n_kv_heads", attention["n_heads"])
        if "d_head" not in attention and isinstance(d_model, int):
            attention["d_head"] = _d_head(d_model, attention["n_heads"])
        if field == "cross":
            attention = {"sees": "all", "position": {"kind": "none"}, **attention}
        block[field] = attention


def _d_head(d_model: int, n_heads: Any) -> Any:
    try:
        heads = int(n_heads)
    except (TypeError, ValueError):
        return None  # the field's own check names the fault
    if heads < 1 or d_model % heads:
        raise ConfigError(
            f"attention.n_heads={n_heads} does not divide d_model={d_model}. "
            f"Use {_near_divisor(d_model, heads)} heads, or give attention.d_head."
        )
    return d_model // heads


def _near_divisor(n: int, near: int) -> int:
    return min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - near))


def _named_blocks(layer: Raw) -> Raw:
    """Blocks as {name: table}, also where they came as a list of tables or of finished configs."""
    blocks = layer.get("blocks")
    if blocks is None or isinstance(blocks, Mapping):
        named = {str(k): _plain(v) for k, v in (blocks or {}).items()}
    else:
        named = {}
        for block in map(_plain, blocks):
            if "name" not in block:
                raise ConfigError("model.blocks: each block of a list needs a name")
            if block["name"] in named:
                raise ConfigError(f"model.blocks: the name {block['name']!r} occurs twice. Give each block its own.")
            named[block["name"]] = block
    named = {name: {k: v for k, v in block.items() if k != "name"} for name, block in named.items()}
    out = {k: (_plain(v) if k in (*COMMON, "encoder") else v) for k, v in layer.items()}
    return {**out, "blocks": named} if named else {k: v for k, v in out.items() if k != "blocks"}


def _plain(value: Any) -> Any:
    """A finished config as the dict that makes it again."""
    return value.model_dump() if hasattr(value, "model_dump") else value
