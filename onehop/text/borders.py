"""Which tokens a checkpoint puts before and after every text."""

import json
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.text.settings import TokenizerSettings, state_of

if TYPE_CHECKING:
    import tokenizers


def settle_borders(
    backend: "tokenizers.Tokenizer", settings: TokenizerSettings, *, bos_id: int | None, eos_id: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the checkpoint's rule puts before and after a text; the backend's post-processor then says the same.

    The post-processor of tokenizer.json says it; `add_bos_token` and `add_eos_token` of tokenizer_config.json, where
    given, overrule it. Both may ask for the begin token: it is one token all the same.
    """
    found = _template(state_of(backend.post_processor))
    before = _decided(found[0], settings.add_bos, name=settings.bos, token_id=bos_id, key="bos_token")
    after = _decided(found[1], settings.add_eos, name=settings.eos, token_id=eos_id, key="eos_token")
    if (before, after) != found:
        backend.post_processor = _post_processor(backend, before, after)
    return before, after


def _decided(
    found: tuple[int, ...], wanted: bool | None, *, name: str | None, token_id: int | None, key: str
) -> tuple[int, ...]:
    """What the config makes of the ids that the post-processor adds on one side."""
    if wanted is None:
        return found
    if not wanted:
        return ()
    if token_id is None:
        raise TextError(f"tokenizer_config.json adds {key}={name!r}, which tokenizer.json does not hold.")
    return (token_id,)


def _template(processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a post-processor puts before and after one text."""
    if processor is None:
        return (), ()
    kind = processor["type"]
    if kind == "Sequence":
        found = [_template(part) for part in processor["processors"]]
        before = tuple(token_id for ids, _ in reversed(found) for token_id in ids)
        return before, tuple(token_id for _, ids in found for token_id in ids)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind != "TemplateProcessing":
        return (), ()
    sides: tuple[list[int], list[int]] = ([], [])
    side = 0
    for item in processor["single"]:
        if "Sequence" in item:
            side = 1
        else:
            sides[side].extend(processor["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return tuple(sides[0]), tuple(sides[1])


def _post_processor(backend: "tokenizers.Tokenizer", before: tuple[int, ...], after: tuple[int, ...]) -> Any:
    """A TemplateProcessing that adds these ids, for one text and for each of two."""
    from tokenizers import processors

    def items(sequence: str, type_id: int) -> list[dict[str, Any]]:
        ids = [*before, None, *after]
        names = [None if token_id is None else backend.id_to_token(token_id) for token_id in ids]
        return [
            {"Sequence": {"id": sequence, "type_id": type_id}}
            if name is None
            else {"SpecialToken": {"id": name, "type_id": type_id}}
            for name in names
        ]

    names = {backend.id_to_token(token_id): token_id for token_id in (*before, *after)}
    special = {name: {"id": name, "ids": [token_id], "tokens": [name]} for name, token_id in names.items()}
    state = {"type": "TemplateProcessing", "single": items("A", 0), "pair": items("A", 0) + items("B", 1)}
    processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    processor.__setstate__(json.dumps(state | {"special_tokens": special}).encode())
    return processor
