"""BERT with its masked-language head as Hugging Face folders: arXiv:1810.04805. No torch."""

from onehop.formats import classic, kin
from onehop.formats.keys import ACTIVATIONS, Harmless, Key, Only, heads_named
from onehop.formats.layout import Family
from onehop.formats.table import Drop, Move, Row, Twin

_EMBED, _L, _HEAD = "bert.embeddings.", "bert.encoder.layer.{i}.", "cls.predictions."
_TOKENS = f"{_EMBED}word_embeddings.weight"


def _map(theirs: str, ours: str) -> tuple[Row, ...]:
    """A map or a norm: its weight and its bias."""
    return tuple(Move(f"{theirs}.{leaf}", f"{ours}.{leaf}") for leaf in ("weight", "bias"))


BERT = Family(
    name="bert",
    title="Hugging Face BERT",
    architecture="BertForMaskedLM",
    structure={
        "attention.kind": "grouped",
        "attention.position.kind": "none",
        "attention.sees": "all",
        "attention.bias": True,
        "attention.bias_out": True,
        "ffn.kind": "plain",
        "ffn.bias": True,
        "norm.kind": "layer",
        "norm_in": False,
        "norm_out": "outside",
        "final_norm.kind": "none",
        "embed.position": "learned",
        "embed.norm.kind": "layer",
        "head.transform.norm.kind": "layer",
        "head.bias": True,
    },
    keys=(
        Key("vocab_size", "vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_attention_heads", "attention.n_heads"),
        Key("intermediate_size", "ffn.d_ff", default=3072),
        Key("hidden_act", ("ffn.activation", "head.transform.activation"), default="gelu", words=ACTIVATIONS),
        Key("max_position_embeddings", "max_len", default=512),
        Key("type_vocab_size", "embed.segments", default=2),
        Key("layer_norm_eps", ("norm.eps", "embed.norm.eps", "head.transform.norm.eps"), default=1e-12),
        Key("hidden_dropout_prob", ("dropout.residual", "dropout.embed"), default=0.1),
        Key("attention_probs_dropout_prob", "dropout.attention", default=0.1),
        Key("initializer_range", "init_std", default=0.02),
        kin.tie(default=True),
        heads_named(("ForMaskedLM", "ForPreTraining")),
        Only("is_decoder", (False,), "a decoder reads forwards only"),
        Only("position_embedding_type", ("absolute",), "the family's code has learned positions"),
        Harmless("classifier_dropout _num_labels output_past", "for other heads"),
        Harmless(
            "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type",
            "sizes of another head, which the family's code does not read",
        ),
        Harmless("directionality", "the family's code reads both ways"),
    ),
    tensors=(
        Move(_TOKENS, "embed.tokens.weight"),
        Move(f"{_EMBED}position_embeddings.weight", "embed.positions.weight"),
        Move(f"{_EMBED}token_type_embeddings.weight", "embed.segments.weight"),
        *_map(f"{_EMBED}LayerNorm", "embed.norm"),
        *_map(f"{_L}attention.self.query", "layers.{i}.attention.wq"),
        *_map(f"{_L}attention.self.key", "layers.{i}.attention.wk"),
        *_map(f"{_L}attention.self.value", "layers.{i}.attention.wv"),
        *_map(f"{_L}attention.output.dense", "layers.{i}.attention.wo"),
        *_map(f"{_L}attention.output.LayerNorm", "layers.{i}.outside.attention"),
        *_map(f"{_L}intermediate.dense", "layers.{i}.ffn.w1"),
        *_map(f"{_L}output.dense", "layers.{i}.ffn.w2"),
        *_map(f"{_L}output.LayerNorm", "layers.{i}.outside.ffn"),
        *_map(f"{_HEAD}transform.dense", "head.transform.map"),
        *_map(f"{_HEAD}transform.LayerNorm", "head.transform.norm"),
        Move(f"{_HEAD}bias", "head.projection.bias", when=kin.tied),
        Twin(f"{_HEAD}decoder.weight", of=_TOKENS, when=kin.tied),
        Twin(f"{_HEAD}decoder.bias", of=f"{_HEAD}bias", when=kin.tied),
        Move(f"{_HEAD}decoder.weight", "head.projection.weight", when=kin.untied),
        Move(f"{_HEAD}decoder.bias", "head.projection.bias", when=kin.untied),
        Drop(f"{_HEAD}bias", "an untied head has a bias of its own"),
        *(Drop(f"bert.pooler.dense.{leaf}", "a summary of the text for other heads") for leaf in ("weight", "bias")),
        *(
            Drop(f"cls.seq_relationship.{leaf}", "whether a second text follows the first: no prediction of a token")
            for leaf in ("weight", "bias")
        ),
        Drop(f"{_EMBED}position_ids", "the numbers 0, 1, 2, …"),
        Drop(f"{_EMBED}token_type_ids", "zeros"),
    ),
    limits=classic.heads_fill,
    old_ends={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
)
