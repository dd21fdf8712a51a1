"""BART (arXiv:1910.13461) and mBART (arXiv:2001.08210) as Hugging Face folders. No torch."""

from onehop.formats import translate
from onehop.formats.keys import Json, Only
from onehop.formats.layout import Family
from onehop.formats.translate import BODY, DECODER, ENCODER

EMBED: Json = {
    "embed.position": "learned",
    "embed.position_offset": 2,
    "embed.norm.kind": "layer",
    "embed.norm.eps": 1e-5,
}


def _family(name: str, title: str, architecture: str, *, pre: bool) -> Family:
    return Family(
        name=name,
        title=title,
        architecture=architecture,
        structure=translate.structure(pre=pre, embed=EMBED),
        keys=translate.keys(
            translate.TIE,
            Only("normalize_before", (pre,), "where the norms stand follows from the family"),
            Only("add_final_layer_norm", (pre,), "where the norms stand follows from the family"),
            Only("normalize_embedding", (True,), "the family's code normalises the embedding"),
            Only("static_position_embeddings", (False,), "the family's code has learned positions"),
            Only("extra_pos_embeddings", (2,), "the family's code begins with the third row"),
        ),
        tensors=translate.tensors(
            pre=pre, more=(*translate.learned(ENCODER, "encoder."), *translate.learned(DECODER, ""))
        ),
        limits=translate.heads_fill,
        aliases=translate.ALIASES,
        prefix=BODY,
    )


BART = _family("bart", "Hugging Face BART", "BartForConditionalGeneration", pre=False)
MBART = _family("mbart", "Hugging Face mBART", "MBartForConditionalGeneration", pre=True)
