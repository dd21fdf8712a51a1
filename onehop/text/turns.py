"""Which tokens of a conversation are the assistant's: those that a model is to learn to say."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from onehop.base.errors import TextError
from onehop.text.chat import Message, Renderer
from onehop.text.guard import CLOSED, OPENED
from onehop.text.tokenizer import Tokenizer

ASSISTANT = "assistant"
WEIGHT = "weight"  # of a message; 0: it is shown, and not learned


def learned_turns(tokenizer: Tokenizer, messages: Sequence[Message], **extra: Any) -> tuple[list[int], list[bool]]:
    """A conversation's token ids, and which of them the assistant says, its end token included.

    What an assistant says is what a {% generation %} of the template holds or, without one, what a turn adds to the
    prompt that asks for it (as `onehop chat` gives it to a model), up to its last control token. A token on the border
    is learned. A message with "weight": 0 is not. Raises TextError for a conversation without an assistant, and for a
    template that writes earlier turns otherwise once others follow.
    """
    renderer = Renderer(tokenizer, **extra)
    text = renderer.text(messages, add_generation_prompt=False)
    turns = list(_marked(renderer, messages, text) or _added(renderer, messages, text))
    if not turns:
        raise TextError('there is nothing to learn in it: no message has the role "assistant" (and a weight).')
    ids = renderer.encode(text)
    learned = [False] * len(ids)
    controls = tokenizer.special_ids | tokenizer.eos_ids
    for start, stop in turns:
        first, end = (_common(renderer.encode(text[:at]), ids) for at in (start, stop))
        control = [i for i in range(first, end) if ids[i] in controls]
        learned[first : control[-1] + 1 if control else end] = [True] * ((control[-1] + 1 if control else end) - first)
    return ids, learned


def _added(renderer: Renderer, messages: Sequence[Message], text: str) -> Iterator[tuple[int, int]]:
    """Where in the text each of the assistant's turns begins and ends, by what it adds to the turns before it."""
    for i, message in enumerate(messages):
        if message.get("role") != ASSISTANT or message.get(WEIGHT) == 0:
            continue
        before = renderer.text(messages[:i], add_generation_prompt=True)
        after = renderer.text(messages[: i + 1], add_generation_prompt=False)
        if not (after.startswith(before) and text.startswith(after)):
            raise TextError(
                f"the chat template writes message {i + 1} in another way once it is answered or followed, so what the "
                "assistant says cannot be told from what it is shown. Cut the conversation after one answer, or give a "
                "template that only adds (task.template) or marks the answers with {% generation %}."
            )
        yield len(before), len(after)


def _marked(renderer: Renderer, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
    """Where the template itself says that the assistant speaks; nothing where it does not say so."""
    marked = renderer.text(messages, add_generation_prompt=False, marked=True)
    if OPENED not in marked:
        return []
    turns: list[tuple[int, int]] = []
    at = 0
    for part in marked.split(OPENED):
        inside, closed, outside = part.rpartition(CLOSED)
        turns += [(at, at + len(inside))] if closed else []
        at += len(inside) + len(outside)
    weights = [message.get(WEIGHT) for message in messages if message.get("role") == ASSISTANT]
    return [turn for turn, weight in zip(turns, weights, strict=False) if weight != 0]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
