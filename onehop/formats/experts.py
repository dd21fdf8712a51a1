"""What families with experts have in common: rows of keys and of tensors. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.config.ffn import MoEConfig
from onehop.config.model import BlockConfig, ModelConfig
from onehop.formats import kin
from onehop.formats.by_layer import each_layer, layer_count
from onehop.formats.keys import ACTIVATIONS, Harmless, Json, Key, KeyRow, Keys, number, value_at
from onehop.formats.table import STACK, Move, Row, Site

DENSE, ROUTED = "dense", "routed"
NAMES = ("gate_proj", "up_proj", "down_proj")


def expert_rows(theirs: str, names: tuple[str, str, str] = NAMES) -> tuple[Row, ...]:
    """The router and the experts below `theirs`; `names` are those of an expert's gate, up and down projections."""
    gate, up, down = (f"{theirs}.experts.{{e}}.{name}.weight" for name in names)
    return (
        Move(f"{theirs}.gate.weight", "layers.{i}.ffn.router.weight", when=kin.routed),
        Move(gate, "layers.{i}.ffn.w1", STACK, when=kin.routed),
        Move(up, "layers.{i}.ffn.w3", STACK, when=kin.routed),
        Move(down, "layers.{i}.ffn.w2", STACK, when=kin.routed),
    )


def shared_rows(theirs: str) -> tuple[Row, ...]:
    """The expert that every token visits."""
    return tuple(
        Move(f"{theirs}.{name}.weight", f"layers.{{i}}.ffn.shared.{ours}.weight", when=has_shared)
        for name, ours in zip(NAMES, ("w1", "w3", "w2"), strict=True)
    )


def has_shared(site: Site) -> bool:
    """Whether this layer has an expert that every token visits."""
    ffn = site.block.ffn
    return isinstance(ffn, MoEConfig) and ffn.d_ff_shared is not None


@dataclass(frozen=True)
class Balance:
    """The weight of the loss that keeps the experts' load even; 0: no such loss."""

    default: float
    theirs: str = "router_aux_loss_coef"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.theirs,)

    def read(self, raw: Json) -> Json:
        weight = raw.get(self.theirs)
        weight = self.default if weight is None else weight
        if weight == 0:
            return {"ffn.balance": "none"}
        return {"ffn.balance": "loss", "ffn.balance_weight": number(self.theirs, weight)}

    def write(self, config: ModelConfig) -> Json:
        lost = value_at(config, "ffn.balance") == "loss"
        return {self.theirs: value_at(config, "ffn.balance_weight") if lost else 0.0}


def always(**paths: Any) -> Keys:
    """Places that no key of theirs decides; `__` stands for a dot."""
    values = {path.replace("__", "."): value for path, value in paths.items()}
    return Keys("", lambda raw: dict(values))


def heads(n_kv: int | None) -> tuple[KeyRow, ...]:
    """The keys of attention's heads; `n_kv` is what their class takes where num_key_value_heads is absent."""
    kv = Key("num_key_value_heads", "attention.n_kv_heads", default=None, absent=n_kv)
    return tuple(kv if "num_key_value_heads" in row.names else row for row in kin.HEADS)


ROUTER_OUTPUT = Harmless("output_router_logits", "whether the router's logits are returned as well")
ACTIVATION = Key("hidden_act", "ffn.activation", default="silu", words=ACTIVATIONS)


def count(raw: Json, key: str, default: int, *, least: int = 0) -> int:
    """A whole number that layers are counted by."""
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CheckpointError(f"config.json: {key}={value!r} should be a whole number from {least} on.")
    return value


def first_dense(default: int) -> tuple[Callable[[Json], list[str]], Callable[[ModelConfig], Json]]:
    """So many first layers have no experts: how `first_k_dense_replace` is read, and written."""

    def kinds(raw: Json) -> list[str]:
        n, k = layer_count(raw), count(raw, "first_k_dense_replace", default)
        return [DENSE if i < k else ROUTED for i in range(n)]

    def says(config: ModelConfig) -> Json:
        found = each_layer(config, kind_of)
        return {"first_k_dense_replace": found.index(ROUTED) if ROUTED in found else len(found)}

    return kinds, says


def groups(raw: Json, n: int, active: int) -> Json:
    """The groups that experts stand in and those that a token chooses from; nothing where it may choose from all."""
    found = count(raw, "n_group", n, least=1), count(raw, "topk_group", active, least=1)
    return {"ffn.n_groups": found[0], "ffn.n_active_groups": found[1]} if found[1] < found[0] else {}


def says_groups(config: ModelConfig) -> Json:
    """The same, of the first layer with experts."""
    ffn: Any = next(config.layers()).ffn
    return {"n_group": ffn.n_groups, "topk_group": ffn.n_active_groups}


def _shared_width(raw: Json, d_ff: int, n_shared: int) -> Json:
    width = count(raw, "moe_intermediate_size", d_ff, least=1)
    return {"ffn.d_ff": width, "ffn.d_ff_shared": width * count(raw, "n_shared_experts", n_shared, least=1)}


def _says_shared_width(config: ModelConfig) -> Json:
    ffn: Any = next(config.layers()).ffn
    return {"moe_intermediate_size": ffn.d_ff, "n_shared_experts": (ffn.d_ff_shared or 0) // ffn.d_ff}


def shared_width(d_ff: int, n_shared: int) -> Keys:
    """The width of one expert, and the shared expert's as a multiple of it."""
    keys = "moe_intermediate_size n_shared_experts"
    return Keys(keys, lambda raw: _shared_width(raw, d_ff, n_shared), _says_shared_width)


def kind_of(block: BlockConfig) -> str:
    """Whether a layer has experts."""
    return ROUTED if isinstance(block.ffn, MoEConfig) else DENSE


def dense_rows(d_ff: int) -> tuple[KeyRow, ...]:
    """A layer without experts among layers with them; `d_ff` is its width where the key is absent."""
    return (always(ffn__kind="gated"), Key("intermediate_size", "ffn.d_ff", default=d_ff), ACTIVATION)


def by_step(raw: Json, n_experts: int) -> list[str]:
    """Every so many layers one has experts, but for those that are listed; `n_experts` where the key is absent."""
    step = count(raw, "decoder_sparse_step", 1, least=1)
    n = count(raw, "num_experts", n_experts)
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(i, int) for i in dense):
        raise CheckpointError(f"config.json: mlp_only_layers={dense!r} should be a list of layer numbers.")
    return [ROUTED if i not in dense and n > 0 and (i + 1) % step == 0 else DENSE for i in range(layer_count(raw))]


def says_step(config: ModelConfig) -> Json:
    """Which layers have no experts, one by one."""
    dense = [i for i, kind in enumerate(each_layer(config, kind_of)) if kind == DENSE]
    return {"decoder_sparse_step": 1, "mlp_only_layers": dense}
