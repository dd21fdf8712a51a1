"""Gemma 3 from 4B on, of which the text model is read: arXiv:2503.19786. No torch."""

from onehop.formats.gemma3_text import GEMMA3_TEXT
from onehop.formats.inside import Whole
from onehop.formats.keys import Harmless
from onehop.formats.table import Drop

GEMMA3 = Whole(
    name="gemma3",
    title="Hugging Face Gemma 3 with images",
    family=GEMMA3_TEXT,
    keys=(
        Harmless(
            "vision_config mm_tokens_per_image boi_token_index eoi_token_index image_token_index initializer_range",
            "for images, which are left out",
        ),
    ),
    spellings=(
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        {"model.": "model.language_model."},  # as transformers names them in memory, and for a while wrote them
    ),
    left_out=tuple(
        Drop(f"{where}{part}.{{any}}", "the part that sees images: only the text model is read")
        for where in ("", "model.")
        for part in ("vision_tower", "multi_modal_projector")
    ),
)
