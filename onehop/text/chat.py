"""Conversations -> the text, or the token ids, that a checkpoint's own chat template makes of them."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.text.settings import HIDE_CLOSE, HIDE_OPEN
from onehop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

_BREAK = "\ufdd2"  # a noncharacter (never in text that was exchanged) inside the control tokens that a message spells
OPENED, CLOSED = "\ufdd3", "\ufdd4"  # noncharacters around what the assistant says, where they are asked for
_RESERVED = re.compile(f"[{HIDE_OPEN}{HIDE_CLOSE}{_BREAK}{OPENED}{CLOSED}]")


def render(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos: str | None,
    eos: str | None,
    add_generation_prompt: bool = True,
    marked: bool = False,
    **extra: Any,
) -> str:
    """The text of a conversation. `extra` is what the template may also read (`tools`, `enable_thinking`, …).

    marked: with OPENED and CLOSED around what a {% generation %} holds.

    The template runs in jinja2's sandbox with what `transformers` gives it: trim_blocks, lstrip_blocks, loop controls,
    `raise_exception`, `strftime_now`, and a `tojson` that does not escape HTML. Refuses a missing template, one that is
    not valid, and a conversation that the template refuses, in its own words.
    """
    import jinja2

    if template is None:
        raise TextError(
            "this checkpoint has no chat template: how a conversation is written for it is not known. "
            "Use `onehop generate` to continue a text instead."
        )
    try:
        return _compile(template, marked).render(
            messages=list(messages),
            **({"tools": None, "documents": None} | extra),
            bos_token=bos or "",
            eos_token=eos or "",
            add_generation_prompt=add_generation_prompt,
        )
    except jinja2.TemplateError as error:
        raise TextError(f"the chat template refuses this conversation: {error}") from error
    except Exception as error:  # a template is foreign code: it may raise anything
        raise TextError(f"the chat template fails on this conversation: {type(error).__name__}: {error}") from error


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], *, add_generation_prompt: bool = True, **extra: Any
) -> list[int]:
    """Token ids of a conversation, with the control tokens that the template wrote, and no others.

    A control token that a message spells is encoded as ordinary characters, so that no user can close a turn or open
    another. Control tokens are the tokenizer's special ones and, in what is not the assistant's, every added token that
    the template itself spells.
    """
    return Renderer(tokenizer, **extra).ids(messages, add_generation_prompt=add_generation_prompt)


class Renderer:
    """A tokenizer's chat template at work; `extra` is what it may also read."""

    def __init__(self, tokenizer: Tokenizer, **extra: Any):
        self.tokenizer, self.template = tokenizer, tokenizer.chat_template
        added = tokenizer.backend.get_added_tokens_decoder().values()
        self.special = {token.content for token in added if token.special}
        self.written = self.special | {token.content for token in added if token.content in (self.template or "")}
        self.extra = {name: _break(value, self.written) for name, value in extra.items()}

    def ids(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of a conversation."""
        return self.encode(self.text(messages, add_generation_prompt=add_generation_prompt))

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool, marked: bool = False) -> str:
        """A conversation's text, for `encode`: a control token that a message spells has a break inside.

        marked: with OPENED and CLOSED around what the template says is the assistant's ({% generation %}).
        """
        broken = [
            _break(message, self.special if message.get("role") == "assistant" else self.written)
            for message in messages
        ]
        return render(
            self.template,
            broken,
            bos=self.tokenizer.settings.bos,
            eos=self.tokenizer.settings.eos,
            add_generation_prompt=add_generation_prompt,
            marked=marked,
            **self.extra,
        )

    def encode(self, text: str) -> list[int]:
        """The ids of what `text` gave, or of its beginning."""
        if _BREAK not in text:
            return self.tokenizer.encode(text, bos=False, special=True)
        hidden = _pattern(self.written).sub(rf"{HIDE_OPEN}\g<0>{HIDE_CLOSE}", text)  # the whole ones: the template's
        return self.tokenizer.encode_hidden(hidden.replace(_BREAK, ""), control=self.written)


def _break(value: Any, control: set[str]) -> Any:
    """`value` with a break inside every control token in its strings, so that it is none however a template cuts it.

    Noncharacters that could forge something are dropped; a control token of a single character becomes U+FFFD.
    """
    if isinstance(value, str):
        clean = _RESERVED.sub("", value)
        return _pattern(control).sub(
            lambda found: f"{found[0][0]}{_BREAK}{found[0][1:]}" if found[0][1:] else "", clean
        )
    if isinstance(value, Mapping):
        return {key: _break(inner, control) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_break(inner, control) for inner in value]
    return value


def _pattern(control: set[str]) -> re.Pattern[str]:
    """Matches any control token, the longest first; without control tokens, nothing."""
    names = sorted(control, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")


@lru_cache(maxsize=16)
def _compile(template: str, marked: bool = False) -> "jinja2.Template":
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Reads {% generation %}, which some templates put around the assistant's turns, as what stands inside."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            mark = [nodes.Output([nodes.TemplateData(sign if marked else "")]) for sign in (OPENED, CLOSED)]
            return [mark[0], *inside, mark[1]]

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    """JSON without HTML escapes; `rest`: separators, sort_keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)
