"""What a model's folder says about generation: default settings, and every end token with its origin."""

from pathlib import Path
from typing import Any

from onehop.base.errors import CheckpointError
from onehop.formats.folder import CONFIG, read_json
from onehop.weights.native import GENERATION

NEVER = ("bad_words_ids", "suppress_tokens")  # what a model never says
# What else old config.json files say about generation, where there is no generation_config.json; how to draw is not
# taken from there.
OLD = (
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "max_length", "min_length", "num_beams",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "typical_p", "exponential_decay_length_penalty",
    "num_return_sequences",
)  # fmt: skip


def settings(folder: Path) -> dict[str, Any]:
    """The contents of the folder's generation_config.json, and what old config.json files say of the kind."""
    keys = NEVER if (folder / GENERATION).is_file() else (*NEVER, *OLD)
    old = {key: value for key, value in _read(folder, CONFIG).items() if key in keys and value is not None}
    return {**old, **_read(folder, GENERATION)}


def end_ids(folder: Path) -> dict[int, str]:
    """Every token id that ends a text, in any file that names one -> those files."""
    found: dict[int, list[str]] = {}
    for name in (GENERATION, CONFIG):
        for token_id in _ids(_read(folder, name).get("eos_token_id"), folder / name):
            found.setdefault(token_id, []).append(name)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read(folder, name).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        known = None if token is None else _id_of(token, folder)
        if known is not None:
            found.setdefault(known, []).append(name)
    return {token_id: ", ".join(files) for token_id, files in sorted(found.items())}


def _read(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / name) if (folder / name).is_file() else {}


def _ids(value: Any, file: Path) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise CheckpointError(f"{file}: eos_token_id={value!r} should be a token id, or a list of them.")
    return ids


def _id_of(token: str, folder: Path) -> int | None:
    """The id of a token in tokenizer.json, if there is one."""
    tokenizer = _read(folder, "tokenizer.json")
    try:
        for added in tokenizer.get("added_tokens") or []:
            if added["content"] == token:
                return int(added["id"])
        vocab = (tokenizer.get("model") or {}).get("vocab") or {}
        if not isinstance(vocab, dict):  # pairs of a piece and its score
            vocab = {row[0]: i for i, row in enumerate(vocab)}
        return vocab.get(token)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}/tokenizer.json is damaged. Get it again from its source.") from error
