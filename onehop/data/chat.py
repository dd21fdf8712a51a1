"""Conversations as examples: all of their tokens are read, and the assistant's are learned."""

from collections.abc import Iterable, Iterator
from typing import Any

from onehop.base.errors import DataError, TextError
from onehop.data.examples import Example
from onehop.data.lines import shown
from onehop.data.records import Record
from onehop.text.tokenizer import Tokenizer
from onehop.text.turns import WEIGHT, learned_turns


def chat_examples(records: Iterable[Record], tokenizer: Tokenizer) -> Iterator[Example]:
    """One example of each {"messages": [{"role": …, "content": …}, …]}, OpenAI's layout; "tools" go to the template.

    Raises DataError, naming the line, for what is no conversation or what the template cannot write.
    """
    for where, record in records:
        messages = [_in_words(message, n, where) for n, message in enumerate(_messages(record, where), start=1)]
        extra = {"tools": _tools(record["tools"], where)} if "tools" in record else {}
        try:
            ids, learned = learned_turns(tokenizer, messages, **extra)
        except TextError as error:
            raise DataError(f"{where}: {error}") from error
        said = [message.get("content") for message in messages if message["role"] == "assistant"]
        yield Example(ids, learned, n_bytes=sum(len(text.encode()) for text in said if isinstance(text, str)))


def _in_words(message: dict[str, Any], n: int, where: str) -> dict[str, Any]:
    """A message whose content is a text: parts that are all text are joined; beside calls of tools none is needed."""
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return {**message, "content": ""}
    if isinstance(content, list) and content and all(isinstance(_text_of(part), str) for part in content):
        return {**message, "content": "".join(map(_text_of, content))}
    if not isinstance(content, str):
        raise DataError(
            f"{where}: the content of message {n} is {shown(content)}. Give a text, or parts that are all "
            '{"type": "text", "text": "…"}.'
        )
    return message


def _tools(tools: Any, where: str) -> Any:
    """What a conversation says of tools; a template would write a text letter by letter."""
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(
            f'{where}: tools is {shown(tools)}. Give a list of objects, {{"type": "function", "function": {{…}}}}, or '
            "leave it out."
        )
    return tools


def _text_of(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None


def _messages(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        found = ", ".join(record) or "nothing"
        raise DataError(
            f'{where} has no messages (it has {found}). A conversation is {{"messages": [{{"role": "user", "content": '
            '"…"}, {"role": "assistant", "content": "…"}]}.'
        )
    for n, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"{where}: message {n} has no role. Use system, user or assistant.")
        if message.get(WEIGHT) not in (None, 0, 1):
            raise DataError(
                f"{where}: message {n} has the weight {message[WEIGHT]!r}. Use 1 (learned) or 0 (shown only)."
            )
    return messages
