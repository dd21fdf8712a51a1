"""What can be asked for is taken as it is; what cannot be is refused in one line, before any work is done."""

import dataclasses
import math

import pytest

from onehop.base.errors import RequestError
from onehop.generate.request import Limits, Request

LIMITS = Limits(n_ids=10, max_len=8)

IMPOSSIBLE = [
    ({"temperature": -0.5}, "temperature=-0.5 must be a finite number, 0 (greedy) or more"),
    ({"temperature": math.nan}, "temperature=nan must be a finite number, 0 (greedy) or more"),
    ({"temperature": math.inf}, "temperature=inf must be a finite number, 0 (greedy) or more"),
    ({"temperature": "hot"}, "temperature='hot' must be a finite number, 0 (greedy) or more"),
    ({"temperature": True}, "temperature=True must be a finite number, 0 (greedy) or more"),
    ({"top_p": 0.0}, "top_p=0.0 must be above 0 and at most 1 (1 is off)"),
    ({"top_p": 1.5}, "top_p=1.5 must be above 0 and at most 1 (1 is off)"),
    ({"top_p": -0.1}, "top_p=-0.1 must be above 0 and at most 1 (1 is off)"),
    ({"top_p": math.nan}, "top_p=nan must be above 0 and at most 1 (1 is off)"),
    ({"min_p": -0.1}, "min_p=-0.1 must be between 0 (off) and 1"),
    ({"min_p": 1.1}, "min_p=1.1 must be between 0 (off) and 1"),
    ({"top_k": -1}, "top_k=-1 must be a whole number, 0 or more (0 is off)"),
    ({"top_k": 2.5}, "top_k=2.5 must be a whole number, 0 or more (0 is off)"),
    ({"max_new_tokens": 0}, "max_new_tokens=0 must be a whole number, 1 or more"),
    ({"max_new_tokens": -1}, "max_new_tokens=-1 must be a whole number, 1 or more"),
    ({"repetition_penalty": 0.0}, "repetition_penalty=0.0 must be between 1e-06 and 1e+06 (1 is off)"),
    ({"repetition_penalty": 1e300}, "repetition_penalty=1e+300 must be between 1e-06 and 1e+06 (1 is off)"),
    ({"presence_penalty": math.nan}, "presence_penalty=nan must be between -1e+06 and 1e+06 (0 is off)"),
    ({"frequency_penalty": 1e300}, "frequency_penalty=1e+300 must be between -1e+06 and 1e+06 (0 is off)"),
    ({"seed": -1}, f"seed=-1 must be a whole number, 0 to {2**63 - 1}"),
    ({"seed": 2**63}, f"seed={2**63} must be a whole number, 0 to {2**63 - 1}"),
    ({"logprobs": -1}, "logprobs=-1 must be a whole number, 0 or more (0 gives the chosen token's alone)"),
    ({"logprobs": True}, "logprobs=True must be a whole number, 0 or more (0 gives the chosen token's alone)"),
    ({"stop": ("",)}, "stop=('',) must be a text that is not empty, or a list of such texts"),
    ({"stop": (1,)}, "stop=(1,) must be a text that is not empty, or a list of such texts"),
    ({"stop": 7}, "stop=7 must be a text that is not empty, or a list of such texts"),
    ({"ignore_eos": 1}, "ignore_eos=1 must be true or false"),
    ({"prompt": (1, -2)}, "the prompt holds -2, which is no token id. Give whole numbers from 0."),
    ({"prompt": (1, "a")}, "the prompt holds 'a', which is no token id. Give whole numbers from 0."),
]


@pytest.mark.parametrize(("wrong", "text"), IMPOSSIBLE, ids=[text.split(" must")[0] for _, text in IMPOSSIBLE])
def test_an_impossible_value_is_refused_in_one_line(wrong, text):
    with pytest.raises(RequestError) as refusal:
        Request(**{"prompt": (1,), **wrong})
    assert str(refusal.value) == text


def test_every_field_but_the_prompt_has_an_impossible_value_above():
    fields = {field.name for field in dataclasses.fields(Request)}
    assert {name for wrong, _ in IMPOSSIBLE for name in wrong} == fields


def test_the_edges_of_each_range_are_allowed():
    for edges in (
        {"repetition_penalty": 1e6, "presence_penalty": -1e6, "frequency_penalty": 1e6},
        {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1.0, "logprobs": 0, "seed": 2**63 - 1, "max_new_tokens": 1},
        {"temperature": 1e-320, "top_p": 1e-6, "frequency_penalty": -2.0, "presence_penalty": 2},
    ):
        request = Request((0,), **edges)
        assert {name: getattr(request, name) for name in edges} == edges  # taken as given, not clamped


def test_one_stop_string_may_stand_alone():
    assert Request((1,), stop="END").stop == ("END",)
    assert Request((1,), stop=["a", "b"]).stop == ("a", "b")


def test_an_id_beyond_the_vocabulary_is_refused_with_the_last_one_that_exists():
    with pytest.raises(RequestError, match=r"^the prompt holds token id 10, but this model's ids end at 9\. Encode"):
        Request((1, 10)).for_model(LIMITS)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers_and_a_way_out():
    with pytest.raises(RequestError, match=r"has 11 tokens and this model's context holds 8\. Shorten it by 3 tokens"):
        Request((1,) * 11).for_model(LIMITS)


def test_an_empty_prompt_begins_with_the_start_token_or_is_refused():
    assert Request(()).for_model(dataclasses.replace(LIMITS, start_id=4)).prompt == (4,)
    with pytest.raises(RequestError, match=r"^the prompt is empty and this model has no start token\. Give one token"):
        Request(()).for_model(LIMITS)


def test_an_encoder_decoder_needs_a_source_and_a_start_token():
    with pytest.raises(RequestError, match=r"^the source is empty"):
        Request(()).for_model(dataclasses.replace(LIMITS, start_id=4, has_source=True))
    with pytest.raises(RequestError, match=r"no decoder start token"):
        Request((1,)).for_model(dataclasses.replace(LIMITS, has_source=True))


def test_an_answer_ends_where_the_context_does():
    """A context of 8 reads 8 tokens, and the logits of the last one still give one more."""
    assert Request((1,) * 5).room(LIMITS) == 4
    assert Request((1,) * 8, max_new_tokens=100).room(LIMITS) == 1
    assert Request((1,) * 5, max_new_tokens=2).room(LIMITS) == 2
    assert Request((1,) * 5).room(dataclasses.replace(LIMITS, has_source=True)) == 8


def test_a_request_that_draws_gets_a_fresh_seed_and_keeps_its_own():
    seeds = {Request((1,)).seeded().seed for _ in range(20)}
    assert len(seeds) > 15  # 32 random bits: a single collision among 20 has odds of 1 in 20 million
    assert Request((1,), seed=5).seeded().seed == 5
    assert Request((1,), temperature=0.0).seeded().seed is None
