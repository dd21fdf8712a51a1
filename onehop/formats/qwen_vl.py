"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL, of which the text model is read: arXiv:2409.12191, 2502.13923. No torch.

Their positions have three coordinates, time, height and width (M-RoPE, arXiv:2409.12191, section 2.1). A text's are all
the same, and three equal ones turn a head as one does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onehop.base.errors import CheckpointError
from onehop.formats.inside import TEXT, Whole
from onehop.formats.keys import Harmless, Json, KeyRow, Keys, nothing, read_keys
from onehop.formats.qwen2 import QWEN2
from onehop.formats.qwen3 import QWEN3
from onehop.formats.table import Drop

KEYS: tuple[KeyRow, ...] = (
    Harmless(
        "vision_config vision_start_token_id vision_end_token_id vision_token_id image_token_id video_token_id",
        "for images, which are left out",
    ),
)
# As transformers names them in memory, and as files have them.
SPELLINGS: tuple[Mapping[str, str], ...] = ({"model.": "model.language_model."}, {"model.": "model."})
SEES = tuple(
    Drop(f"{where}visual.{{any}}", "the part that sees images: only the text model is read") for where in ("", "model.")
)


@dataclass(frozen=True)
class QwenVL(Whole):
    """Its older files hold the text model's keys beside the others, not in a table of their own."""

    def text(self, raw: Json) -> Json:
        """The text model's config.json. Raises CheckpointError for keys of the larger one that cannot be honoured."""
        own = {name for row in self.keys for name in row.names}
        if raw.get(TEXT) is None:
            text = {key: value for key, value in raw.items() if key not in own}
        else:
            read_keys((*self.keys, Keys(f"{TEXT} tie_word_embeddings", nothing)), raw, title=self.title)
            text = super().text({**raw, TEXT: _as(raw[TEXT], self.family.name, f"{self.name}_text")})
        text = {**text, "model_type": self.family.name}
        text.pop("architectures", None)
        return {
            **text,
            **{key: _one_coordinate(text[key]) for key in ("rope_scaling", "rope_parameters") if key in text},
        }


def _as(text: object, name: str, called: str) -> object:
    if isinstance(text, dict) and text.get("model_type") == called:
        return {**text, "model_type": name}
    return text


def _one_coordinate(table: object) -> object:
    """A table of rotary keys without the three coordinates."""
    if not isinstance(table, dict):
        return table
    kinds = {table.get("type", "default"), table.get("rope_type", "default")}
    if not kinds <= {"mrope", "default"}:
        raise CheckpointError(f"config.json: rotary scaling {sorted(map(str, kinds))} beside M-RoPE is not known.")
    kept = {key: value for key, value in table.items() if key not in ("type", "mrope_section", "mrope_interleaved")}
    return {**kept, "rope_type": "default"}


QWEN2_VL, QWEN2_5_VL, QWEN3_VL = (
    QwenVL(name=name, title=title, family=family, keys=KEYS, spellings=SPELLINGS, left_out=SEES)
    for name, title, family in (
        ("qwen2_vl", "Hugging Face Qwen2-VL", QWEN2),
        ("qwen2_5_vl", "Hugging Face Qwen2.5-VL", QWEN2),
        ("qwen3_vl", "Hugging Face Qwen3-VL", QWEN3),
    )
)
