"""Conversations -> the text, or the token ids, that a checkpoint's own chat template makes of them."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from onehop.base.errors import TextError
from onehop.text.guard import CLOSED, OPENED, RESERVED, Guard
from onehop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]


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
        special = frozenset(token.content for token in added if token.special)
        template = self.template or ""
        self.written = special | {t.content for t in added if t.content in template and not t.content.isspace()}
        self.guard = _guard(special, self.written, template)
        self.extra = self.guard.hide(extra)

    def ids(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of a conversation."""
        return self.encode(self.text(messages, add_generation_prompt=add_generation_prompt))

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool, marked: bool = False) -> str:
        """A conversation's text, for `encode`: what could be a control token of a message's is hidden.

        marked: with OPENED and CLOSED around what the template says is the assistant's ({% generation %}).
        """
        hidden = [self.guard.hide(message, assistant=message.get("role") == "assistant") for message in messages]
        settings = self.tokenizer.settings
        options: dict[str, Any] = {"bos": settings.bos, "eos": settings.eos, "marked": marked, **self.extra}
        try:
            return render(self.template, hidden, add_generation_prompt=add_generation_prompt, **options)
        except TextError as error:
            raise TextError(self.guard.restore(str(error))) from error

    def encode(self, text: str) -> list[int]:
        """The ids of what `text` gave, or of its beginning."""
        named = self.guard.named(text)
        if named is None:
            return self.tokenizer.encode(self.guard.restore(text), bos=False, special=True)
        return self.tokenizer.encode_hidden(named, control=self.written)


@lru_cache(maxsize=16)  # every record of a conversation's file asks for the same one
def _guard(special: frozenset[str], written: frozenset[str], template: str) -> Guard:
    return Guard(special, written, looked_for=_strings(template))


def _strings(template: str) -> set[str]:
    """What stands between quotes in a template; nothing of one that cannot be read."""
    import jinja2
    from jinja2 import nodes

    try:
        found = _environment(marked=False).parse(template).find_all(nodes.Const)
        return {const.value for const in found if isinstance(const.value, str)}
    except jinja2.TemplateError:
        return set()


@lru_cache(maxsize=16)
def _compile(template: str, marked: bool = False) -> "jinja2.Template":
    return _environment(marked=marked).from_string(template)


def _environment(*, marked: bool) -> "jinja2.Environment":
    """What templates are read by."""
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
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    """JSON without HTML escapes; `rest`: separators, sort_keys."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, **rest)
    return re.sub(r"[^\x00-\x7f]", _escaped, text) if ensure_ascii else text


def _escaped(found: re.Match[str]) -> str:
    """A character as JSON's ASCII has it, if it is one: what stands in for a sign is still to become it."""
    return found[0] if RESERVED.match(found[0]) else json.dumps(found[0])[1:-1]
