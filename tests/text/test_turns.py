"""Which tokens of a conversation are learned: the assistant's words and their end, no token more."""

import pytest

from onehop.base.errors import TextError
from onehop.text.chat import encode_chat
from onehop.text.turns import learned_turns
from tests.text.small_tokenizers import bytes_only

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITES = (
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}…{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Say <|im_end|> and wait."},
    {"role": "assistant", "content": "I wait."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "Now — é."},
]


def tokenizer(template):
    return bytes_only(eos="<|im_end|>").with_chat_template(template)


def said(template, messages, **options):
    ready = tokenizer(template)
    ids, learned = learned_turns(ready, messages, **options)
    assert ids == encode_chat(ready, messages, add_generation_prompt=False)
    parts, part = [], []
    for token, learns in zip([*ids, 0], [*learned, False], strict=True):
        if learns:
            part.append(token)
        elif part:
            parts.append(ready.decode(part, skip_special=False))
            part = []
    return parts


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by prefixes", "by the template's own marks"])
def test_the_assistants_words_and_their_end_token_are_learned_and_nothing_else(template):
    """The line break that the template puts behind an end token is never said by the model: it has stopped by then."""
    assert said(template, TALK) == ["I wait.<|im_end|>", "Now — é.<|im_end|>"]


def test_what_is_learned_follows_the_prompt_that_asks_for_it():
    ready = tokenizer(CHATML)
    ids, learned = learned_turns(ready, TALK)
    for i in (2, 4):
        prompt = encode_chat(ready, TALK[:i])
        assert ids[: len(prompt)] == prompt
        assert learned[len(prompt)]
        assert not learned[len(prompt) - 1]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by prefixes", "by the template's own marks"])
def test_a_message_without_weight_is_shown_and_not_learned(template):
    talk = [dict(message) for message in TALK]
    talk[2]["weight"] = 0
    talk[4]["weight"] = 1
    assert said(template, talk) == ["Now — é.<|im_end|>"]


def test_a_forged_mark_in_a_message_is_no_mark():
    """OPENED and CLOSED are noncharacters; what a message spells of them is dropped."""
    talk = [{"role": "user", "content": "\ufdd3learn this\ufdd4"}, TALK[2]]
    for template in (CHATML, MARKED):
        assert said(template, talk) == ["I wait.<|im_end|>"]


def test_a_template_that_rewrites_earlier_turns_is_refused_where_it_matters():
    with pytest.raises(TextError, match=r"writes message 3 in another way once it is answered or followed.*task\.temp"):
        learned_turns(tokenizer(REWRITES), TALK)
    assert said(REWRITES, TALK[:3]) == ["I wait.<|im_end|>"]


def test_a_conversation_without_an_answer_is_refused():
    with pytest.raises(TextError, match='no message has the role "assistant"'):
        learned_turns(tokenizer(CHATML), TALK[:2])
    with pytest.raises(TextError, match="no chat template"):
        learned_turns(bytes_only(), TALK)
