"""Gemma 3 from 4B on, of which the text model is read: arXiv:2503.19786. No torch."""

from onehop.formats.gemma3_text import GEMMA3_TEXT
from onehop.formats.inside import LLAVA, SEES, Whole
from onehop.formats.keys import Harmless

GEMMA3 = Whole(
    name="gemma3",
    title="Hugging Face Gemma 3 with images",
    family=GEMMA3_TEXT,
    keys=(
        Harmless(
            "vision_config mm_tokens_per_image boi_token_index eoi_token_index image_token_index boi_token_id "
            "eoi_token_id image_token_id initializer_range",
            "for images, which are left out",
        ),
    ),
    spellings=LLAVA,
    left_out=SEES,
)
