"""T5, T5 1.1, FLAN-T5 and mT5 as Hugging Face folders: arXiv:1910.10683, 2002.05202, 2010.11934. No torch."""

from dataclasses import dataclass
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.config.ffn import GatedConfig
from onehop.config.model import ModelConfig
from onehop.formats.keys import ACTIVATIONS, Harmless, Json, Key, KeyRow, Keys, number, short
from onehop.formats.layout import Family
from onehop.formats.table import Drop, Move, Row, Site, Twin

ATTENTIONS = ("attention", "cross", "encoder.attention")
FFNS = ("ffn", "encoder.ffn")


def _everywhere(field: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{part}.{field}" for part in parts)


@dataclass(frozen=True)
class Projection:
    """feed_forward_proj: an activation, or `gated-` and an activation."""

    default: str
    names: tuple[str, ...] = ("feed_forward_proj", "dense_act_fn", "is_gated_act")

    def read(self, raw: Json) -> Json:
        word = raw.get("feed_forward_proj") or self.default
        first, _, act = word.partition("-") if isinstance(word, str) else ("", "", "")
        gated, act = (True, act) if first == "gated" else (False, word)
        act = "gelu_new" if word == "gated-gelu" else act  # published under this name with the tanh form
        if not isinstance(act, str) or act not in ACTIVATIONS:
            raise CheckpointError(
                f"config.json: feed_forward_proj={short(word)} is not known. Known: relu, gated-gelu, …"
            )
        for key, derived in (("is_gated_act", gated), ("dense_act_fn", act)):
            if raw.get(key) not in (None, derived):
                raise CheckpointError(f"config.json: {key}={short(raw[key])} contradicts feed_forward_proj={word!r}.")
        kind = "gated" if gated else "plain"
        return dict.fromkeys(_everywhere("kind", *FFNS), kind) | dict.fromkeys(
            _everywhere("activation", *FFNS), ACTIVATIONS[act]
        )

    def write(self, config: ModelConfig) -> Json:
        ffn: Any = next(config.layers()).ffn
        gated = isinstance(ffn, GatedConfig)
        act = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == ffn.activation), ffn.activation)
        word = ("gated-gelu" if act == "gelu_pytorch_tanh" else f"gated-{act}") if gated else act
        return {"feed_forward_proj": word}


def _scale(raw: Json) -> Json:
    """Whether hidden states are multiplied by d_model^-0.5 before the head: where the first T5 tied it, as it says."""
    scaled = raw.get("scale_decoder_outputs")
    scaled = raw.get("tie_word_embeddings") is not False if scaled is None else scaled
    d_model = number("d_model", raw.get("d_model"))
    return {"head.scale": d_model**-0.5 if scaled else 1.0, **_tied(raw)}


def _write_scale(config: ModelConfig) -> Json:
    return {"scale_decoder_outputs": config.head.scale != 1.0, "tie_word_embeddings": config.head.tied}


def _tied(raw: Json) -> Json:
    return {"head.tied": raw.get("tie_word_embeddings") is not False}


def _depths(raw: Json) -> Json:
    """num_decoder_layers left out: as many as the encoder has."""
    encoder, decoder = raw.get("num_layers", 6), raw.get("num_decoder_layers")
    return {"encoder.n_layers": encoder, "n_layers": encoder if decoder is None else decoder}


def _write_depths(config: ModelConfig) -> Json:
    return {"num_layers": config.encoder.n_layers if config.encoder else None, "num_decoder_layers": config.n_layers}


def keys(*, projection: str, tying: Keys) -> tuple[KeyRow, ...]:
    """The keys of T5's kin."""
    return (
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("d_kv", _everywhere("d_head", *ATTENTIONS), default=64),
        Key("num_heads", _everywhere("n_heads", *ATTENTIONS)),
        Key("d_ff", _everywhere("d_ff", *FFNS)),
        Keys("num_layers num_decoder_layers", _depths, _write_depths),
        Projection(projection),
        Key("relative_attention_num_buckets", _buckets("n_buckets"), default=32),
        Key("relative_attention_max_distance", _buckets("max_distance"), default=128),
        Key("layer_norm_epsilon", ("norm.eps", "final_norm.eps", "encoder.norm.eps", "encoder.final_norm.eps"),
            default=1e-6),
        Key("dropout_rate", ("dropout.attention", "dropout.residual", "dropout.embed"), default=0.1),
        Key("n_positions", "max_len", default=512),
        Key("initializer_range", "init_std", default=0.02),
        tying,
        Harmless("initializer_factor classifier_dropout", "fresh weights and other heads"),
        Harmless("is_encoder_decoder", "every model of this family is one"),
        Harmless("output_past", "how it is run"),
    )  # fmt: skip


def _buckets(field: str) -> tuple[str, ...]:
    return (f"attention.position.{field}", f"encoder.attention.position.{field}")


def gated(site: Site) -> bool:
    """Whether this layer's feed-forward has a gate."""
    return isinstance(site.block.ffn, GatedConfig)


def plain(site: Site) -> bool:
    """Whether it has none."""
    return not gated(site)


def layer(theirs: str, ours: str, *, cross: bool) -> tuple[Row, ...]:
    """One layer of either stack."""
    ffn = f"{theirs}.layer.{2 if cross else 1}"

    def attention(n: int, name: str, part: str) -> tuple[Row, ...]:
        return (
            Move(f"{theirs}.layer.{n}.layer_norm.weight", f"{ours}.{part}_norm.weight"),
            *(Move(f"{theirs}.layer.{n}.{name}.{x}.weight", f"{ours}.{part}.w{x}.weight") for x in "qkvo"),
        )

    return (
        *attention(0, "SelfAttention", "attention"),
        *(attention(1, "EncDecAttention", "cross") if cross else ()),
        Move(f"{ffn}.layer_norm.weight", f"{ours}.ffn_norm.weight"),
        Move(f"{ffn}.DenseReluDense.wi.weight", f"{ours}.ffn.w1.weight", when=plain),
        Move(f"{ffn}.DenseReluDense.wi_0.weight", f"{ours}.ffn.w1.weight", when=gated),
        Move(f"{ffn}.DenseReluDense.wi_1.weight", f"{ours}.ffn.w3.weight", when=gated),
        Move(f"{ffn}.DenseReluDense.wo.weight", f"{ours}.ffn.w2.weight"),
    )


def _table(stack: str) -> str:
    return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def tied(site: Site) -> bool:
    """Whether the head is the embedding."""
    return site.config.head.tied


TENSORS: tuple[Row, ...] = (
    Move("shared.weight", "embed.tokens.weight"),
    Move(_table("encoder"), "encoder.schemes.0.table"),
    Move(_table("decoder"), "schemes.0.table"),
    *layer("encoder.block.{i}", "encoder.layers.{i}", cross=False),
    *layer("decoder.block.{i}", "layers.{i}", cross=True),
    Move("encoder.final_layer_norm.weight", "encoder.final_norm.weight"),
    Move("decoder.final_layer_norm.weight", "final_norm.weight"),
    Move("lm_head.weight", "head.projection.weight", when=lambda site: not tied(site)),
    Twin("lm_head.weight", of="shared.weight", when=tied),
    Twin("encoder.embed_tokens.weight", of="shared.weight"),
    Twin("decoder.embed_tokens.weight", of="shared.weight"),
    Drop("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", "cross-attention has no positions"),
)

STRUCTURE = {
    "attention.kind": "grouped",
    "attention.position.kind": "t5",
    "attention.scale": 1.0,
    "cross.kind": "grouped",
    "cross.scale": 1.0,
    "norm.kind": "rms",
    "norm.statistics": "float32",
    "final_norm.kind": "rms",
    "final_norm.statistics": "float32",
    "encoder.attention.kind": "grouped",
    "encoder.attention.position.kind": "t5",
    "encoder.attention.sees": "all",
    "encoder.attention.scale": 1.0,
    "encoder.norm.kind": "rms",
    "encoder.norm.statistics": "float32",
    "encoder.final_norm.kind": "rms",
    "encoder.final_norm.statistics": "float32",
}

T5 = Family(
    name="t5",
    title="Hugging Face T5",
    architecture="T5ForConditionalGeneration",
    structure=STRUCTURE,
    keys=keys(projection="relu", tying=Keys("tie_word_embeddings scale_decoder_outputs", _scale, _write_scale)),
    tensors=TENSORS,
)
MT5 = Family(
    name="mt5",
    title="Hugging Face mT5",
    architecture="MT5ForConditionalGeneration",
    structure={**STRUCTURE, "head.scale": 1.0},
    keys=keys(
        projection="gated-gelu",
        tying=Keys("tie_word_embeddings", _tied, lambda config: {"tie_word_embeddings": config.head.tied}),
    ),
    tensors=TENSORS,
)
