"""The text models of Gemma 3 as Hugging Face folders: arXiv:2503.19786. No torch."""

from collections.abc import Sequence

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import gemma, gemma2, kin
from onehop.formats.by_layer import FULL, SLIDING, each_layer, kind_of, layer_count, listed, stack, window_of
from onehop.formats.keys import Harmless, Json, Key, Keys, Only, number
from onehop.formats.layout import Family
from onehop.formats.rope_keys import LENGTH, Rope

DEPTH = 26  # what their class takes where num_hidden_layers is absent: the larger models' files leave much out
GLOBAL, LOCAL = Rope(length=131072, theta=1e6), Rope(length=131072)


def _read_layers(raw: Json) -> Json:
    """Which layers have a window, and each kind's rotary positions, in both ages."""
    raw = {"num_hidden_layers": DEPTH, "sliding_window": 4096, "sliding_window_pattern": 6, **raw}
    n, period = layer_count(raw), number("sliding_window_pattern", raw["sliding_window_pattern"])
    kinds = listed(raw, "layer_types", n, (SLIDING, FULL)) or [SLIDING if (i + 1) % period else FULL for i in range(n)]
    if SLIDING in kinds and raw["sliding_window"] is None:
        raise CheckpointError(f"config.json: some layers are {SLIDING}, but sliding_window is missing. Give its width.")
    tables = _tables(raw)
    old = {key: raw[key] for key in (LENGTH, "rope_theta", "rope_scaling") if key in raw}
    far = GLOBAL.read({**old, "rope_parameters": tables.get(FULL)})
    near = LOCAL.read({"rope_theta": raw.get("rope_local_base_freq"), "rope_parameters": tables.get(SLIDING)})
    blocks = {
        SLIDING: {"attention": {"window": raw["sliding_window"], "position": _position(near)}},
        FULL: {"attention": {"window": None, "position": _position(far)}},
    }
    return stack(kinds, blocks) | {"max_len": far["max_len"]}


def _tables(raw: Json) -> Json:
    tables = raw.get("rope_parameters") or {}
    if not isinstance(tables, dict) or not tables.keys() <= {SLIDING, FULL}:
        raise CheckpointError(
            f"config.json: rope_parameters={tables!r} should hold a table for {SLIDING} and one for {FULL}."
        )
    return tables


def _position(paths: Json) -> Json:
    return {path.rpartition(".")[2]: value for path, value in paths.items() if path.startswith("attention.position.")}


def _write_layers(config: ModelConfig) -> Json:
    kinds = each_layer(config, kind_of)
    layers = dict(zip(kinds, config.layers(), strict=True))
    width = window_of(config) or 4096  # their code wants one, also where no layer uses it
    out: Json = {"layer_types": kinds, "sliding_window": width, **_pattern(kinds), LENGTH: config.max_len}
    tables: Json = {}
    if SLIDING in layers:
        near = LOCAL.write_for(layers[SLIDING].attention, config.max_len)
        tables[SLIDING], out["rope_local_base_freq"] = near["rope_parameters"], near["rope_theta"]
    if FULL in layers:
        far = GLOBAL.write_for(layers[FULL].attention, config.max_len)
        tables[FULL] = far.pop("rope_parameters")
        out |= far
    return out | {"rope_parameters": tables}


def _pattern(kinds: Sequence[str]) -> Json:
    """One full layer after so many with windows, for readers without the list; nothing where that is not so."""
    period = kinds.index(FULL) + 1 if FULL in kinds else len(kinds) + 1
    regular = all((kind == FULL) == ((i + 1) % period == 0) for i, kind in enumerate(kinds))
    return {"sliding_window_pattern": period} if regular else {}


GEMMA3_TEXT = Family(
    name="gemma3_text",
    title="Hugging Face Gemma 3",
    architecture="Gemma3ForCausalLM",
    structure={
        **gemma2.STRUCTURE,
        "attention.qk_norm.norm.kind": "rms",
        "attention.qk_norm.norm.offset": 1,
        "attention.qk_norm.span": "head",
    },
    keys=(
        Key("vocab_size", "vocab_size", default=262208),
        Key("hidden_size", "d_model", default=2304),
        Key("num_hidden_layers", "n_layers", default=DEPTH),
        Key("initializer_range", "init_std", default=0.02),
        gemma.embed_scale(2304),
        Key("num_attention_heads", "attention.n_heads", default=8),
        *kin.heads(n_kv_heads=4, d_head=256)[1:],
        gemma.SCALAR,
        gemma.BIASES,
        gemma.ONE_WAY,
        Only("attn_logit_softcapping", (), "their own code does not apply it"),
        Keys(
            f"layer_types sliding_window sliding_window_pattern rope_parameters rope_theta rope_scaling "
            f"rope_local_base_freq {LENGTH}",
            _read_layers,
            _write_layers,
        ),
        Harmless("_sliding_window_pattern", "layer_types says it, and their own code does not read it"),
        Key("intermediate_size", "ffn.d_ff", default=9216),
        *gemma2.GATED_KEYS[1:],
        *gemma2.LEFTOVERS,
        kin.rms_eps(qk=True),
        kin.tie(default=True),
        Key("final_logit_softcapping", "head.softcap", default=None),
    ),
    tensors=(*gemma2.TENSORS, *kin.QK_NORMS),
    limits=kin.whole_heads("Hugging Face Gemma 3"),
)
