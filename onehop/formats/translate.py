"""What BART, mBART and Marian have in common: two stacks of fairseq's layers, all with biases. No torch."""

from collections.abc import Iterator

from onehop.config.attention import AttentionConfig
from onehop.config.model import ModelConfig
from onehop.formats import classic
from onehop.formats.keys import ACTIVATIONS, Harmless, Json, Key, KeyRow, Keys, Only
from onehop.formats.table import AS_ROW, Drop, Move, Row, Site, Twin

BODY = "model."
SHARED, ENCODER, DECODER = f"{BODY}shared.weight", f"{BODY}encoder", f"{BODY}decoder"
ALIASES = {
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
}
_STACK: Json = {
    "attention.kind": "grouped",
    "attention.position.kind": "none",
    "attention.bias": True,
    "attention.bias_out": True,
    "ffn.kind": "plain",
    "ffn.bias": True,
    "norm.kind": "layer",
    "norm.eps": 1e-5,
}


def structure(*, pre: bool, embed: Json) -> Json:
    """Norms before the sublayers and after the last layer, or (post-norm) after the sums; `embed` for both stacks."""
    placed = {"norm_in": pre, "norm_out": "none" if pre else "outside"}
    last = {"final_norm.kind": "layer", "final_norm.eps": 1e-5} if pre else {"final_norm.kind": "none"}
    stack = {**_STACK, **placed, **last, **embed}
    cross = {"cross.kind": "grouped", "cross.bias": True, "cross.bias_out": True}
    encoder = {f"encoder.{path}": value for path, value in stack.items()}
    return {**stack, **cross, **encoder, "encoder.attention.sees": "all", "head.bias": True}


def both(path: str) -> tuple[str, str]:
    """A place in both stacks."""
    return (path, f"encoder.{path}")


def _read_tie(raw: Json) -> Json:
    tied = raw.get("tie_word_embeddings") is not False
    return {"head.tied": tied, "encoder.share_embedding": tied}


TIE = Keys("tie_word_embeddings", _read_tie, lambda config: {"tie_word_embeddings": config.head.tied})


def keys(*more: KeyRow) -> tuple[KeyRow, ...]:
    """The keys of all three; `more` are a family's own."""
    return (
        Key("vocab_size", "vocab_size"),
        Key("d_model", "d_model"),
        Key("encoder_layers", "encoder.n_layers"),
        Key("decoder_layers", "n_layers"),
        Key("encoder_attention_heads", "encoder.attention.n_heads"),
        Key("decoder_attention_heads", ("attention.n_heads", "cross.n_heads")),
        Key("encoder_ffn_dim", "encoder.ffn.d_ff", default=4096),
        Key("decoder_ffn_dim", "ffn.d_ff", default=4096),
        Key("activation_function", both("ffn.activation"), default="gelu", words=ACTIVATIONS),
        Key("max_position_embeddings", "max_len", default=1024),
        classic.root_scale(default=False, places=both("embed.scale")),
        Key("dropout", ("dropout.residual", "dropout.embed"), default=0.1),
        Key("attention_dropout", "dropout.attention", default=0.0),
        Key("init_std", "init_std", default=0.02),
        Only("is_encoder_decoder", (True,), "the decoder alone would have nothing to read"),
        Harmless("encoder_layerdrop decoder_layerdrop activation_dropout layerdrop replacing_rate", "training only"),
        Harmless("student_encoder_layers student_decoder_layers save_step", "how it was distilled"),
        Harmless("classifier_dropout classif_dropout _num_labels", "for other heads"),
        Harmless("force_bos_token_to_be_generated output_past", "for generation"),
        Harmless("add_bias_logits", "today's code always adds the bias of the logits, which is 0 where there was none"),
        *more,
    )


def _shared(site: Site) -> bool:
    encoder = site.config.encoder
    return encoder is not None and encoder.share_embedding


def _apart(site: Site) -> bool:
    return not _shared(site)


def _untied(site: Site) -> bool:
    return not site.config.head.tied


def _map(theirs: str, ours: str) -> tuple[Row, ...]:
    """A map or a norm: its weight and its bias."""
    return tuple(Move(f"{theirs}.{leaf}", f"{ours}.{leaf}") for leaf in ("weight", "bias"))


def _layers(theirs: str, ours: str, *, pre: bool, cross: bool) -> Iterator[Row]:
    """The layers of one stack, with or without cross-attention."""
    theirs, ours = f"{theirs}.layers.{{i}}", f"{ours}layers.{{i}}"
    parts = {"attention": ("self_attn", "self_attn_layer_norm"), "ffn": ("", "final_layer_norm")}
    if cross:
        parts["cross"] = ("encoder_attn", "encoder_attn_layer_norm")
    for part, (attention, norm) in parts.items():
        yield from _map(f"{theirs}.{norm}", f"{ours}.{part}_norm" if pre else f"{ours}.outside.{part}")
        if attention:
            for x, y in (("q_proj", "wq"), ("k_proj", "wk"), ("v_proj", "wv"), ("out_proj", "wo")):
                yield from _map(f"{theirs}.{attention}.{x}", f"{ours}.{part}.{y}")
    yield from _map(f"{theirs}.fc1", f"{ours}.ffn.w1")
    yield from _map(f"{theirs}.fc2", f"{ours}.ffn.w2")


def tensors(*, pre: bool, more: tuple[Row, ...]) -> tuple[Row, ...]:
    """Both stacks and the embeddings, which are one, or (untied) one for each stack; `more` are a family's own."""
    last = ((f"{ENCODER}.layer_norm", "encoder.final_norm"), (f"{DECODER}.layer_norm", "final_norm")) if pre else ()
    return (
        Move(SHARED, "embed.tokens.weight", when=_shared),
        Move(f"{DECODER}.embed_tokens.weight", "embed.tokens.weight", when=_apart),
        Move(f"{ENCODER}.embed_tokens.weight", "encoder.embed.tokens.weight", when=_apart),
        *_layers(ENCODER, "encoder.", pre=pre, cross=False),
        *_layers(DECODER, "", pre=pre, cross=True),
        *(row for theirs, ours in last for row in _map(theirs, ours)),
        Move("lm_head.weight", "head.projection.weight", when=_untied),
        Move("final_logits_bias", "head.projection.bias", AS_ROW, optional=True),
        Twin(f"{ENCODER}.embed_tokens.weight", of=SHARED, when=_shared),
        Twin(f"{DECODER}.embed_tokens.weight", of=SHARED, when=_shared),
        Twin("lm_head.weight", of=SHARED, when=lambda site: site.config.head.tied and _shared(site)),
        Twin("lm_head.weight", of=f"{DECODER}.embed_tokens.weight",
             when=lambda site: site.config.head.tied and _apart(site)),
        Drop(SHARED, "the stacks have embeddings of their own"),
        Drop(f"{ENCODER}.version", "the layout's version in old files"),
        Drop(f"{DECODER}.version", "the layout's version in old files"),
        *more,
    )  # fmt: skip


def learned(stack: str, ours: str) -> tuple[Row, ...]:
    """A stack's learned positions and the norm on its embedding."""
    return (
        Move(f"{stack}.embed_positions.weight", f"{ours}embed.positions.weight"),
        *_map(f"{stack}.layernorm_embedding", f"{ours}embed.norm"),
    )


def heads_fill(config: ModelConfig) -> Iterator[str]:
    """No key for the width of a head, in either stack, nor for the number of heads that read the encoder."""
    yield from classic.heads_fill(config)
    block = next(config.layers())
    of: list[tuple[str, AttentionConfig | None]] = [("cross", block.cross)]
    if config.encoder is not None:
        of.append(("encoder.attention", next(config.encoder.layers()).attention))
    for path, a in of:
        if a is not None and a.n_heads * a.d_head != config.d_model:
            yield f"{path}.d_head={a.d_head} times {path}.n_heads={a.n_heads} must be d_model={config.d_model}."
