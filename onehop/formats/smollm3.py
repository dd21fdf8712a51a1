"""SmolLM3 as Hugging Face folders: Hugging Face 2025; layers without positions: arXiv:2501.18795. No torch."""

from collections.abc import Iterator

from onehop.base.errors import CheckpointError
from onehop.config.model import BlockConfig, ModelConfig
from onehop.formats import kin
from onehop.formats.by_layer import FULL, SLIDING, each_layer, kind_of, layer_count, listed, stack, window_of
from onehop.formats.keys import Harmless, Json, Key, Keys, number
from onehop.formats.layout import Family
from onehop.formats.rope_keys import Rope

NOWHERE = "_without_positions"


def _read_layers(raw: Json) -> Json:
    """Each layer turns q and k or not (no_rope_layers has a 1 where it does), and has a window or not."""
    n, turns = layer_count(raw), _turns(raw)
    width = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    kinds = listed(raw, "layer_types", n, (SLIDING, FULL))
    kinds = kinds or [SLIDING if width is not None and not turn else FULL for turn in turns]
    if SLIDING in kinds and width is None:
        raise CheckpointError(
            f"config.json: some layers are {SLIDING}, but sliding_window is missing or switched off. Give its width "
            "and use_sliding_window=true."
        )
    names = [kind + ("" if turn else NOWHERE) for kind, turn in zip(kinds, turns, strict=True)]
    return stack(names, {name: {"attention": _attention(name, width)} for name in names})


def _attention(name: str, width: int | None) -> Json:
    nowhere: Json = {"position": {"kind": "none"}} if name.endswith(NOWHERE) else {}
    return {"window": width if name.startswith(SLIDING) else None, **nowhere}


def _turns(raw: Json) -> list[bool]:
    n, given = layer_count(raw), raw.get("no_rope_layers")
    if given is None:
        interval = number("no_rope_layer_interval", raw.get("no_rope_layer_interval", 4))
        return [(i + 1) % interval != 0 for i in range(n)]
    if not isinstance(given, list) or len(given) < n or any(value not in (0, 1) for value in given):
        raise CheckpointError(
            f"config.json: no_rope_layers should be a list of {n} values, 0 or 1, one for each layer."
        )
    return [bool(value) for value in given[:n]]


def _write_layers(config: ModelConfig) -> Json:
    width = window_of(config)
    return {
        "no_rope_layers": each_layer(config, lambda block: int(_turning(block))),
        "use_sliding_window": width is not None,
        "sliding_window": width,
        "layer_types": each_layer(config, kind_of),
    }


def _turning(block: BlockConfig) -> bool:
    return block.attention.position.kind == "rope"


def limits(config: ModelConfig) -> Iterator[str]:
    """Rotary positions or none."""
    for kind in {block.attention.position.kind for block in config.blocks} - {"rope", "none"}:
        yield f"attention.position={kind} cannot be written as a Hugging Face SmolLM3."


SMOLLM3 = Family(
    name="smollm3",
    title="Hugging Face SmolLM3",
    architecture="SmolLM3ForCausalLM",
    structure={path: value for path, value in kin.STRUCTURE.items() if path != "attention.position.kind"},
    keys=(
        *kin.SHAPE,
        *kin.heads(n_kv_heads=4),
        Key("attention_bias", ("attention.bias", "attention.bias_out"), default=False),
        Keys(
            "no_rope_layers no_rope_layer_interval use_sliding_window sliding_window layer_types",
            _read_layers,
            _write_layers,
        ),
        *kin.GATED_KEYS,
        Key("mlp_bias", "ffn.bias", default=False),
        kin.rms_eps(),
        kin.tie(default=True),
        Rope(length=32768, theta=2e6),
        Harmless("max_window_layers", "their own code does not read it"),
        Harmless("pretraining_tp", "how many devices shared a product in training: the product is the same"),
    ),
    tensors=kin.BODY,
    limits=limits,
)
