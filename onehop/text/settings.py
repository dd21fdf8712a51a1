"""What the files beside a tokenizer.json say: begin and end tokens, who adds them, chat templates."""

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.base.trust import too_large

if TYPE_CHECKING:
    import tokenizers


HIDE_OPEN, HIDE_CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: never in text that was exchanged


@dataclass(frozen=True)
class TokenizerSettings:
    """The begin and end tokens by name, who adds them, every end id that a file names, and the chat templates by name.

    add_bos, add_eos: None leaves it to the post-processor. config: tokenizer_config.json as it was found. doubt: what
    its source leaves open about the way a text is cut, and what to do about it.
    """

    bos: str | None = None
    eos: str | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    end_ids: tuple[int, ...] = ()
    chat_templates: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    doubt: str | None = None

    def to_config(self, *, adds_bos: bool, adds_eos: bool) -> dict[str, Any]:
        """The contents of a tokenizer_config.json that says the same."""
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | self.config
        config |= {"bos_token": self.bos, "eos_token": self.eos, "clean_up_tokenization_spaces": False}
        if self.bos is not None:
            config["add_bos_token"] = adds_bos
        if self.eos is not None:
            config["add_eos_token"] = adds_eos
        if self.chat_templates:
            only = len(self.chat_templates) == 1
            several = [{"name": name, "template": text} for name, text in self.chat_templates.items()]
            config["chat_template"] = next(iter(self.chat_templates.values())) if only else several
        return config


def read_backend(file: Path) -> "tokenizers.Tokenizer":
    """The tokenizer in a tokenizer.json. Refuses a missing or damaged file in one line."""
    from tokenizers import Tokenizer

    if not file.is_file():
        raise TextError(
            f"{file} does not exist. Give a folder that holds a tokenizer.json, a SentencePiece tokenizer.model or a "
            ".tiktoken file, or the file itself."
        )
    try:
        if (wrong := too_large(file)) is not None:
            raise ValueError(wrong)
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises the bare class
        reason = " ".join(str(error).split())
        raise TextError(f"{file} is not a whole tokenizer.json ({reason}). Get it again from its source.") from error


def read_settings(folder: Path) -> TokenizerSettings:
    """What the JSON files of a checkpoint's folder say about its tokenizer; each file may be absent."""
    config = read_json(folder / "tokenizer_config.json")
    tokens = read_json(folder / "special_tokens_map.json") | config
    models = [read_json(folder / name) for name in ("generation_config.json", "config.json")]
    return TokenizerSettings(
        bos=_token(tokens, "bos_token", folder),
        eos=_token(tokens, "eos_token", folder),
        add_bos=_flag(config, "add_bos_token", folder),
        add_eos=_flag(config, "add_eos_token", folder),
        end_ids=tuple(sorted({token_id for model in models for token_id in _ids(model.get("eos_token_id"), folder)})),
        chat_templates=_chat_templates(folder, config),
        config=config,
    )


def without_control(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """A tokenizer with the same ids to which a control token spelled in text is ordinary characters.

    The library's flag is enough for BPE, whose merges cannot build a control token. Models that look whole strings up
    (Unigram, WordLevel, BPE with `ignore_merges`) would still find it in their vocabulary: there it gets a hidden name.
    """
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    special &= backend.get_vocab(with_added_tokens=False).keys()
    plain = with_hidden_names(backend, special) if special and _looks_up_strings(backend) else backend
    plain.encode_special_tokens = True
    return plain


def with_hidden_names(backend: "tokenizers.Tokenizer", tokens: AbstractSet[str]) -> "tokenizers.Tokenizer":
    """A copy with the same ids in which each of `tokens` is spelled HIDE_OPEN token HIDE_CLOSE, as no text is."""
    spec = json.loads(backend.to_str())
    tokens = tokens - {spec["model"].get("unk_token")}  # the model refers to it by name
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, dict):
        spec["model"]["vocab"] = {_hidden(token, tokens): token_id for token, token_id in vocab.items()}
    else:
        spec["model"]["vocab"] = [[_hidden(token, tokens), score] for token, score in vocab]
    for token in spec["added_tokens"]:
        token["content"] = _hidden(token["content"], tokens)
    return type(backend).from_str(json.dumps(spec))


def state_of(part: Any) -> dict[str, Any] | None:
    """The JSON description of one part of a tokenizer (its decoder, its post-processor, …)."""
    return None if part is None else json.loads(part.__getstate__())


def _looks_up_strings(backend: "tokenizers.Tokenizer") -> bool:
    kind = type(backend.model).__name__
    return kind in ("Unigram", "WordLevel", "WordPiece") or bool(getattr(backend.model, "ignore_merges", False))


def _hidden(token: str, tokens: AbstractSet[str]) -> str:
    return f"{HIDE_OPEN}{token}{HIDE_CLOSE}" if token in tokens else token


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file, {} where there is none. Raises TextError where it is damaged."""
    if not file.is_file():
        return {}
    try:
        if (wrong := too_large(file)) is not None:
            raise ValueError(wrong)
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise TextError(f"{file} is not readable JSON ({error}). Get it again from its source.") from error
    if not isinstance(found, dict):
        raise TextError(f"{file} holds no JSON object. Get it again from its source.")
    return found


def _token(tokens: dict[str, Any], key: str, folder: Path) -> str | None:
    """A token written as a string or as an AddedToken's dictionary."""
    token = tokens.get(key)
    found = token.get("content") if isinstance(token, dict) else token
    if found is not None and not (isinstance(found, str) and found == _whole(found)):
        raise TextError(f"{folder}: {key}={str(token)[:60]!a} should be a text. Get its JSON files again.")
    return found


def _whole(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can spell and no text holds."""
    return text.encode(errors="ignore").decode()


def _flag(config: dict[str, Any], key: str, folder: Path) -> bool | None:
    found = config.get(key)
    if found is not None and not isinstance(found, bool):
        raise TextError(f"{folder}: {key}={str(found)[:60]} should be true or false. Get its JSON files again.")
    return found


def _ids(value: Any, folder: Path) -> list[int]:
    """An id, a list of ids, or nothing, as a list."""
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in found):
        raise TextError(f"{folder}: eos_token_id={str(value)[:60]} should be a token id, or a list of them.")
    return found


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; chat_template.jinja counts before chat_template.json, and that before the config."""
    found = config.get("chat_template") or {}
    if isinstance(found, str):
        found = {"default": found}
    elif isinstance(found, list):
        found = {row.get("name"): row.get("template") for row in found if isinstance(row, dict)} or None
    if not isinstance(found, dict) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise TextError(
            f"{folder / 'tokenizer_config.json'}: chat_template is neither a text nor texts by name. Get it again from "
            "its source."
        )
    alone = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(alone, str):
        found = found | {"default": alone}
    file = folder / "chat_template.jinja"
    if file.is_file():
        found = found | {"default": _text(file)}
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise TextError(f"{file} is not readable text ({error}). Get it again from its source.") from error
