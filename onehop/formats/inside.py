"""Text models inside larger ones, which also see or hear: their config is a table in the larger one's. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onehop.base.errors import CheckpointError
from onehop.formats.keys import Json, KeyRow, Keys, nothing, read_keys
from onehop.formats.layout import Family
from onehop.formats.table import Drop, Move, Row, Twin

TEXT = "text_config"
# The spellings of LLaVA's kin, as files have them and as transformers names them in memory (and for a while wrote
# them), and their tensors that see.
LLAVA: tuple[Mapping[str, str], ...] = (
    {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    {"model.": "model.language_model."},
)
SEES = tuple(
    Drop(f"{where}{part}.{{any}}", "the part that sees images: only the text model is read")
    for where in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)


@dataclass(frozen=True)
class Whole:
    """A larger model by its model_type, and what is read of it: the text model in `family`'s layout.

    `spellings`: beginnings of that family's tensor names, and what they are in this one's files; the first whose
    beginnings occur in a file holds. `left_out`: the tensors of the other parts.
    """

    name: str
    title: str
    family: Family
    keys: tuple[KeyRow, ...]
    spellings: tuple[Mapping[str, str], ...]
    left_out: tuple[Drop, ...]

    def text(self, raw: Json) -> Json:
        """The text model's config.json. Raises CheckpointError for keys of the larger one that cannot be honoured."""
        read_keys((*self.keys, Keys(f"{TEXT} tie_word_embeddings", nothing)), raw, title=self.title)
        text = raw.get(TEXT)
        if not isinstance(text, dict) or text.get("model_type", self.family.name) != self.family.name:
            raise CheckpointError(f"config.json: {TEXT} should hold the keys of a {self.family.title}.")
        tie = raw.get("tie_word_embeddings")  # where the larger one says it, the text's own word is not heard
        return {**text, "model_type": self.family.name} | ({} if tie is None else {"tie_word_embeddings": tie})

    def tensors(self, names: Iterable[str]) -> tuple[Row, ...]:
        """The text family's rows under the names that this file uses, and the other parts' tensors as leftovers."""
        names = list(names)
        fitting = (s for s in self.spellings if any(name.startswith(tuple(s.values())) for name in names))
        spelling = next(fitting, self.spellings[0])
        return (*(_renamed(row, spelling) for row in self.family.tensors), *self.left_out)


def _renamed(row: Row, spelling: Mapping[str, str]) -> Row:
    def name(theirs: str) -> str:
        begin = next((begin for begin in spelling if theirs.startswith(begin)), "")
        return spelling.get(begin, "") + theirs.removeprefix(begin)

    if isinstance(row, Move):
        theirs = row.theirs
        return replace(row, theirs=name(theirs) if isinstance(theirs, str) else tuple(map(name, theirs)))
    if isinstance(row, Twin):
        return replace(row, theirs=name(row.theirs), of=name(row.of))
    return replace(row, theirs=name(row.theirs))
