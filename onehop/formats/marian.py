"""Marian's translators as Hugging Face folders: arXiv:1804.00344. No torch."""

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import translate
from onehop.formats.keys import Harmless, Json, Keys, Only, short
from onehop.formats.layout import Family
from onehop.formats.table import Drop
from onehop.formats.translate import BODY, DECODER, ENCODER


def read_sharing(raw: Json) -> Json:
    """One embedding for both stacks and the head, or for a stack each, and the head's or not; one vocabulary."""
    own, size = raw.get("decoder_vocab_size"), raw.get("vocab_size")
    if own not in (None, size):
        raise CheckpointError(
            f"config.json: decoder_vocab_size={short(own)} and vocab_size={short(size)} cannot be honoured: "
            "source and target need one vocabulary here. Use a checkpoint in which the two are equal."
        )
    tied = raw.get("tie_word_embeddings") is not False
    shared = tied and raw.get("share_encoder_decoder_embeddings") is not False
    return {"head.tied": tied, "encoder.share_embedding": shared}


def write_sharing(config: ModelConfig) -> Json:
    """The same as keys."""
    assert config.encoder is not None, "the family's structure has one"
    return {
        "tie_word_embeddings": config.head.tied,
        "share_encoder_decoder_embeddings": config.encoder.share_embedding,
    }


MARIAN = Family(
    name="marian",
    title="Hugging Face Marian",
    architecture="MarianMTModel",
    structure=translate.structure(pre=False, embed={"embed.position": "sinusoidal", "embed.waves": "halves"}),
    keys=translate.keys(
        Keys(
            "tie_word_embeddings share_encoder_decoder_embeddings decoder_vocab_size",
            read_sharing,
            write_sharing,
        ),
        Only("normalize_before", (False,), "where the norms stand follows from the family"),
        Only("add_final_layer_norm", (False,), "where the norms stand follows from the family"),
        Only("normalize_embedding", (False,), "the family's code does not normalise the embedding"),
        Only("static_position_embeddings", (True,), "the family's code has sinusoidal positions"),
        Harmless("extra_pos_embeddings", "sinusoidal positions have no spare rows"),
    ),
    tensors=translate.tensors(
        pre=False,
        more=tuple(
            Drop(f"{stack}.embed_positions.weight", "the table of waves: computed from the config")
            for stack in (ENCODER, DECODER)
        ),
    ),
    limits=translate.heads_fill,
    aliases=translate.ALIASES,
    prefix=BODY,
)
