"""The tokenizer and the chat template: what text survives, and what a rendered conversation becomes."""

import json
import re
import unicodedata
from typing import Any

from onehop.base.errors import TextError
from onehop.lm.check_theirs import TheirFault, quiet, their_code
from onehop.lm.language_model import LanguageModel
from onehop.lm.probe import Finding, simply, skipped
from onehop.text.chat import encode_chat, render
from onehop.text.tokenizer import Tokenizer

HARD_TEXTS = (
    "Hello, world! It's 3.14 % of $1,000; isn't it?",
    "  two leading spaces, a tab\tand a trailing space ",
    "mixed\nnew\r\nlines\r\r\n\n\n   indented\n",
    "Größe, naïve, œuvre, Ελληνικά, русский, Tiếng Việt, ﬁ, ½",
    "עברית و العربية \u202eright to left\u202c फ़ारसी हिन्दी ไทย",
    "中文，日本語、한국어",
    "👩🏽‍🚀 👨‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 é é",
    "def f(x):\n    return x**2  # 0x1F, a_b, a-b, <b>&amp;</b>\n",
    "0123456789 1000000 12:34:56",
    "▁the▁ <s> </s> <unk> <|endoftext|> [CLS]",
    "a" * 10_000,
    "x \u200b\u00a0\u2028\ufeff y",
)
MESSAGES = (
    {"role": "user", "content": "Hello  there\n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Once upon a time"},
)
LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>|<(?:start|end)_of_\w+>|\[/?INST\]")


def round_trip(lm: LanguageModel) -> Finding:
    """Hard texts to ids and back. Only a Unicode normalisation that the tokenizer itself names may change them."""
    if (tokenizer := lm.tokenizer) is None:
        return skipped("this model has no tokenizer")
    unknown, normalised, wrong = 0, 0, []
    token = getattr(tokenizer.backend.model, "unk_token", None)
    unk = None if token is None else tokenizer.backend.token_to_id(token)
    unk = getattr(tokenizer.backend.model, "unk_id", None) if unk is None else unk
    for text in HARD_TEXTS:
        try:
            ids = tokenizer.encode(text, bos=False)
        except TextError:  # letter by letter: it refuses what it does not know
            unknown += 1
            continue
        back = tokenizer.decode(ids, skip_special=False)
        if back == text:
            continue
        if unk in ids:
            unknown += 1
        elif tokenizer.backend.normalizer is not None and _folded(back) == _folded(text):
            normalised += 1
        else:
            wrong.append(_first_difference(text, back))
    note = f"{len(HARD_TEXTS) - unknown - normalised - len(wrong)} of {len(HARD_TEXTS)} texts come back exactly"
    note += f", {normalised} as its normalizer writes them" if normalised else ""
    note += f", {unknown} hold characters for which it has no token" if unknown else ""
    return simply(not wrong, "; ".join([note, *wrong[:3]]))


def lint(lm: LanguageModel) -> Finding:
    """The ids of a rendered conversation: one begin token, control tokens whole, and a file that says how it cuts."""
    if (tokenizer := lm.tokenizer) is None:
        return skipped("this model has no tokenizer")
    wrong, said = _split(tokenizer), []
    if tokenizer.settings.doubt is not None:
        wrong.append(tokenizer.settings.doubt)
    if tokenizer.bos_id is not None and tokenizer.encode("a").count(tokenizer.bos_id) > 1:
        wrong.append("a plain text begins with two begin tokens")
    if tokenizer.chat_template is None:
        said.append("no chat template")
    else:
        try:
            _chat(tokenizer, wrong, said)
        except TextError as error:
            said.append(str(error))
    return simply(not wrong, "; ".join([*wrong, *said]))


def _split(tokenizer: Tokenizer) -> list[str]:
    """Control tokens that do not become their own one id."""
    wrong = []
    named = {tokenizer.settings.bos, tokenizer.settings.eos} - {None, ""}
    added = tokenizer.backend.get_added_tokens_decoder().values()
    for content in sorted(named | {token.content for token in added if token.special}):  # type: ignore[type-var]
        assert content is not None
        ids = tokenizer.encode(content, bos=False, special=True)
        if len(ids) != 1:
            wrong.append(f"the special token {content} splits into {len(ids)}: {ids[:8]}")
    return wrong


def _chat(tokenizer: Tokenizer, wrong: list[str], said: list[str]) -> None:
    settings = tokenizer.settings
    text = render(tokenizer.chat_template, MESSAGES, bos=settings.bos, eos=settings.eos)
    ids = encode_chat(tokenizer, MESSAGES)
    if tokenizer.bos_id is not None and ids.count(tokenizer.bos_id) > 1:
        wrong.append(f"a rendered conversation holds {ids.count(tokenizer.bos_id)} begin tokens")
    if settings.bos and text.startswith(settings.bos) and tokenizer.adds_bos:
        said.append(
            f"the template writes {settings.bos} and the tokenizer's own rule adds it too: onehop adds none to a "
            "rendered conversation; a program that tokenizes the rendered text with its defaults gets two"
        )
    for name in sorted(set(LOOKS_SPECIAL.findall(text))):
        found = tokenizer.encode(name, bos=False, special=True)
        if len(found) > 1:
            said.append(f"the template writes {name}, which is no token here but {len(found)}")
    said.append(f"a conversation of {len(MESSAGES)} messages is {json.dumps(ids)}")


def theirs(lm: LanguageModel) -> Finding:
    """The ids that transformers gives the same texts, with what each side's own rule adds."""
    if lm.tokenizer is None or lm.folder is None or not (lm.folder / "tokenizer.json").is_file():
        return skipped("this model has no tokenizer.json")
    try:
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        return skipped("transformers is not installed: pip install 'onehop-lm[eval]'")
    with quiet():
        try:
            with their_code("opening the tokenizer"):
                other = PreTrainedTokenizerFast.from_pretrained(lm.folder)
            return _same_ids(lm.tokenizer, other)
        except TheirFault as fault:
            return skipped(f"could not be compared: {fault}")


def _same_ids(tokenizer: Tokenizer, other: Any) -> Finding:
    control = {token.content for token in tokenizer.backend.get_added_tokens_decoder().values()}
    wrong, n = [], 0
    for text in HARD_TEXTS:
        if any(token in text for token in control):
            continue  # onehop reads a control token that a text spells as ordinary characters, on purpose
        try:
            ours = tokenizer.encode(text)
        except TextError:
            continue
        n += 1
        with their_code(f"encoding {text[:24]!r}"):
            found = other(text)["input_ids"]
        if found != ours:
            at = next((i for i, (a, b) in enumerate(zip(ours, found)) if a != b), min(len(ours), len(found)))
            wrong.append(f"{text[:24]!r}: from token {at} on, {ours[at : at + 4]} here and {found[at : at + 4]} there")
    return simply(not wrong, "; ".join(wrong[:3]) or f"{n} texts, the same ids")


def _folded(text: str) -> str:
    """The text without what Unicode normalisation, folded case and tidied spaces change."""
    plain = unicodedata.normalize("NFKD", text.replace("▁", " ")).casefold()  # SentencePiece writes a space so
    return "".join(c for c in plain if not c.isspace() and unicodedata.category(c) not in ("Mn", "Cf", "Cc"))


def _first_difference(text: str, back: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, back)) if a != b), min(len(text), len(back)))
    return f"{text[:16]!r} comes back changed at character {at}: {text[at : at + 8]!r} as {back[at : at + 8]!r}"
