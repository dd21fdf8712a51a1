"""Mistral Small 3.1 and 3.2, of which the text model is read: Mistral AI 2025. No torch."""

from onehop.formats.inside import LLAVA, SEES, Whole
from onehop.formats.keys import Harmless
from onehop.formats.mistral import MISTRAL

MISTRAL3 = Whole(
    name="mistral3",
    title="Hugging Face Mistral 3 with images",
    family=MISTRAL,
    keys=(
        Harmless(
            "vision_config image_token_index image_token_id projector_hidden_act vision_feature_layer "
            "multimodal_projector_bias spatial_merge_size",
            "for images, which are left out",
        ),
    ),
    spellings=LLAVA,
    left_out=SEES,
)
