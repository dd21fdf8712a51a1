"""Each transform against its definition, and draws that depend on nothing but the request."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import OnehopError
from onehop.generate import sample
from onehop.generate.request import Limits, Request
from onehop.generate.sample import Sampler

INF = math.inf
LIMITS = Limits(n_ids=4, max_len=64)


def row(*values, dtype=torch.float64):
    return torch.tensor([values], dtype=dtype)


def column(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def cut(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """What is left to draw from, as probabilities."""
    out = sample.temper(logits, column(temperature, dtype=logits.dtype))
    out = sample.top_k(out, column(top_k, dtype=torch.int64))
    out = sample.top_p(out, column(top_p))
    out = sample.min_p(out, column(min_p))
    return out.softmax(dim=-1)


FLAT = [0.5, 0.3, 0.15, 0.05]
CUTS = [
    ("nucleus keeps the crossing token", FLAT, {"top_p": 0.7}, [0.625, 0.375, 0, 0]),
    ("crossing token again", FLAT, {"top_p": 0.9}, [0.5263157895, 0.3157894737, 0.1578947368, 0]),
    ("just below a sum", FLAT, {"top_p": 0.79}, [0.625, 0.375, 0, 0]),
    ("just above a sum", FLAT, {"top_p": 0.81}, [0.5263157895, 0.3157894737, 0.1578947368, 0]),
    ("tiny top_p keeps one", FLAT, {"top_p": 1e-6}, [1, 0, 0, 0]),
    ("the first token is enough", [0.9, 0.06, 0.04], {"top_p": 0.3}, [1, 0, 0]),
    (
        "top_p 1 keeps the tail",
        [0.7, 0.299999999, 9.99e-10, 1e-12],
        {"top_p": 1.0},
        [0.7, 0.299999999, 9.99e-10, 1e-12],
    ),
    ("unsorted", [0.05, 0.15, 0.5, 0.3], {"top_p": 0.7}, [0, 0, 0.625, 0.375]),
    ("top_k 1 and top_p keep one", [0.3, 0.25, 0.25, 0.2], {"top_k": 1, "top_p": 0.8}, [1, 0, 0, 0]),
    ("top_p acts on what top_k left", [0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),
    ("top_k above the vocabulary", FLAT, {"top_k": 100}, FLAT),
    ("top_k equal to it", FLAT, {"top_k": 4}, FLAT),
    ("top_k 0 is off", FLAT, {"top_k": 0}, FLAT),
    ("min_p is relative", [0.5, 0.3, 0.06, 0.04, 0.1], {"min_p": 0.1}, [0.5208333333, 0.3125, 0.0625, 0, 0.1041666667]),
    (
        "min_p after the temperature",
        [0.5, 0.3, 0.06, 0.04, 0.1],
        {"min_p": 0.1, "temperature": 2.0},
        [0.3507463537, 0.2716869573, 0.121502101, 0.09920605006, 0.1568585379],
    ),
    ("min_p 1 keeps the best", FLAT, {"min_p": 1.0}, [1, 0, 0, 0]),
    ("temperature before top_p", FLAT, {"temperature": 0.5, "top_p": 0.7}, [0.7352941176, 0.2647058824, 0, 0]),
    (
        "all of them",
        [0.35, 0.3, 0.2, 0.1, 0.05],
        {"temperature": 1.5, "top_k": 4, "top_p": 0.85, "min_p": 0.4},
        [0.3859589432, 0.3482650679, 0.2657759889, 0, 0],
    ),
    ("masked tokens stay out", [0, 0.6, 0, 0.4], {"top_k": 3, "top_p": 0.99}, [0, 0.6, 0, 0.4]),
]


@pytest.mark.parametrize(("name", "before", "parameters", "after"), CUTS, ids=[case[0] for case in CUTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cuts_keep_what_their_definitions_say(name, before, parameters, after, dtype):
    logits = row(*before).log().to(dtype)
    torch.testing.assert_close(cut(logits, **parameters), row(*after, dtype=dtype), atol=1e-6, rtol=0)
    assert ((cut(logits, **parameters) > 0) == (row(*after) > 0)).all()


def test_a_sum_that_is_exactly_top_p_ends_the_nucleus():
    kept = cut(row(0.5, 0.25, 0.125, 0.125).log(), top_p=0.75) > 0
    assert kept.tolist()[0][:2] == [True, True]
    assert kept.sum() in (2, 3)  # log and exp may round the sum to just below 0.75


def test_among_equals_the_lowest_ids_are_kept():
    assert (cut(row(0.4, 0.2, 0.2, 0.2).log(), top_p=0.5) > 0).tolist() == [[True, True, False, False]]
    assert (cut(row(0.4, 0.3, 0.3).log(), top_k=2) > 0).tolist() == [[True, True, False]]
    assert (cut(row(*[0.25] * 4).log(), top_k=3) > 0).tolist() == [[True, True, True, False]]


def by_hand(probabilities, top_k, top_p, min_p):
    """The kept ids, from the definitions, one token after another."""
    order = sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i))
    kept = order[:top_k] if top_k else order
    total, sum_, nucleus = sum(probabilities[i] for i in kept), 0.0, []
    for i in kept:
        if top_p == 1.0 or not nucleus or sum_ < top_p * total:
            nucleus.append(i)
            sum_ += probabilities[i]
    return {i for i in nucleus if probabilities[i] >= min_p * probabilities[order[0]]}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([1, 7, 129, 700]),
    top_k=st.sampled_from([0, 1, 5, 200]),
    top_p=st.sampled_from([1.0, 0.999, 0.6, 0.01]),
    min_p=st.sampled_from([0.0, 0.03, 0.5]),
)
def test_the_cuts_equal_a_loop_over_tokens(seed, vocabulary, top_k, top_p, min_p):
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept = cut(logits, top_k=top_k, top_p=top_p, min_p=min_p).squeeze(0).nonzero().flatten().tolist()
    assert set(kept) == by_hand(logits.softmax(-1)[0].tolist(), top_k, top_p, min_p)


def test_a_row_for_which_a_cut_is_off_keeps_its_bits():
    """So a neighbour's parameters cannot change a request."""
    logits = torch.randn(2, 300)
    for transform, on, off, dtype in [
        (sample.top_k, 3, 0, torch.int64),
        (sample.top_p, 0.5, 1.0, torch.float64),
        (sample.min_p, 0.5, 0.0, torch.float32),
        (sample.temper, 0.5, 1.0, torch.float32),
    ]:
        alone = transform(logits[1:], column(off, dtype=dtype))
        beside = transform(logits, column(on, off, dtype=dtype))[1:]
        assert torch.equal(alone, beside), transform.__name__


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits_once():
    logits = row(2.0, -1.0, 0.5, -3.0, 0.0, 1.0, -INF)
    seen = torch.tensor([[True, True, False, True, True, False, True]])  # [1, 1, 4] was asked, [0, 0, 0, 3] answered
    for penalty, after in [
        (1.25, [1.6, -1.25, 0.5, -3.75, 0.0, 1.0, -INF]),
        (0.8, [2.5, -0.8, 0.5, -2.4, 0.0, 1.0, -INF]),
        (1.0, [2.0, -1.0, 0.5, -3.0, 0.0, 1.0, -INF]),
    ]:
        torch.testing.assert_close(sample.repetition(logits, seen, column(penalty)), row(*after), atol=1e-12, rtol=0)


def test_presence_and_frequency_penalties_subtract_by_what_was_generated():
    counts = row(3.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    after = sample.presence_and_frequency(
        row(2.0, -1.0, 0.5, -3.0, 0.0, 1.0), counts, presence=column(0.25), frequency=column(0.5)
    )
    torch.testing.assert_close(after, row(0.25, -1.0, 0.5, -3.75, 0.0, 1.0), atol=1e-12, rtol=0)


def test_a_sampler_counts_the_prompt_for_repetition_and_only_the_answer_for_the_others():
    request = Request((1, 1, 3), repetition_penalty=1.25, frequency_penalty=0.5, presence_penalty=0.25, temperature=0.0)
    sampler = Sampler([request], LIMITS)
    logits = row(2.0, -1.0, 0.5, -3.0)
    assert sampler(logits).item() == 0
    assert sampler.seen.tolist() == [[True, True, False, True]]
    torch.testing.assert_close(sampler._penalise(logits), row(2.0 / 1.25 - 0.75, -1.25, 0.5, -3.75), atol=1e-7, rtol=0)


def test_an_encoder_decoders_source_is_not_part_of_the_answer():
    request = Request((1, 2), repetition_penalty=1.25, temperature=0.0)
    assert not Sampler([request], Limits(n_ids=4, max_len=8, has_source=True)).seen.any()


GREEDY = [
    ([1.0, 3.0, 2.999, -5.0], [0, 1e-12, 1e-30, 1e-320], 1),
    ([2.0, 5.0, 5.0, 1.0], [0], 1),  # a tie: the lowest id
    ([-200.0, -100.0, -10000.0], [0, 1e-9], 1),
    ([3e38, -3e38, 2.9e38], [0, 0.5], 0),  # a division by 0.5 would overflow float32
    ([-INF, 0.5, -INF, 0.25], [0, 1e-6], 1),
]


@pytest.mark.parametrize(("logits", "temperatures", "token"), GREEDY)
def test_temperature_zero_and_any_tiny_one_are_greedy(logits, temperatures, token):
    for temperature in temperatures:
        for cuts in ({}, {"top_k": 2, "top_p": 0.9, "min_p": 0.1}):
            sampler = Sampler([Request((0,), temperature=temperature, seed=1, **cuts)], Limits(len(logits), 8))
            assert {sampler(row(*logits, dtype=torch.float32)).item() for _ in range(20)} == {token}


@pytest.mark.parametrize(
    ("temperature", "probabilities"),
    [
        (0.1, [2.061060046209e-09, 0.9999546000703, 4.539786860887e-05, 4.248161380307e-18]),
        (0.7, [0.04416595441674, 0.7690047046425, 0.1842927744962, 0.002536566444607]),
        (1.0, [0.0889468172974, 0.6572330228319, 0.2417825171588, 0.01203764271194]),
        (2.0, [0.1743714876403, 0.4739908462541, 0.2874899806762, 0.06414768542936]),
        (100.0, [0.2493485656256, 0.254385740785, 0.2518545603723, 0.2444111332171]),
    ],
)
def test_a_temperature_gives_the_softmax_of_the_divided_logits(temperature, probabilities):
    found = cut(row(1.0, 3.0, 2.0, -1.0), temperature=temperature)
    torch.testing.assert_close(found, row(*probabilities), atol=1e-12, rtol=1e-9)


def test_each_row_of_a_batch_has_its_own_temperature():
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0], [1.0, 3.0, 2.0, -1.0], [0.0, 0.0, 9.0, 0.0]])
    drawing = Request((0,), temperature=1.0, seed=3)
    batch = Sampler([Request((0,), temperature=0.0), drawing, Request((0,), temperature=0.0)], LIMITS)
    alone = Sampler([drawing], LIMITS)
    drawn = [batch(logits).tolist() for _ in range(200)]
    assert {(first, last) for first, _, last in drawn} == {(1, 2)}
    assert [middle for _, middle, _ in drawn] == [alone(logits[1:2]).item() for _ in range(200)]


def test_ids_beyond_the_real_ones_are_never_drawn_and_take_no_probability():
    """A head of 16 rows for 10 tokens: the padding rows' logits of 0 would beat all real ones."""
    logits = torch.tensor([[-3.0, -2.5, -4.0, -2.75, -6.0, -2.6, -8.0, -3.5, -2.9, -5.0, *[0.0] * 6]])
    limits = Limits(n_ids=10, max_len=8)
    assert Sampler([Request((0,), temperature=0.0)], limits)(logits).item() == 1
    sampler = Sampler([Request((0,), temperature=1.5, top_k=16, seed=0)], limits)
    assert max(sampler(logits).item() for _ in range(2000)) < 10
    (found,) = sample.raw_logprobs(logits[:, :10], torch.tensor([1]), [20])
    assert found.logprob == pytest.approx(-1.540702363907, abs=1e-6)
    assert len(found.top) == 10
    assert found.top[0] == (1, pytest.approx(-1.540702363907, abs=1e-6))


def test_a_top_k_beyond_any_integer_of_torch_is_no_cut():
    logits = torch.randn(1, LIMITS.n_ids, generator=torch.Generator().manual_seed(0))
    drawn = [Sampler([Request((0,), top_k=k, seed=3)], LIMITS)(logits).item() for k in (0, 10**21)]
    assert drawn[0] == drawn[1]


def test_log_probabilities_are_those_of_the_models_own_logits():
    raw = [-0.7698917410846, -1.769891741085, -2.769891741085, -3.769891741085, -1.269891741085]
    logits = row(1.0, 0.0, -1.0, -2.0, 0.5)
    found, none, alone = sample.raw_logprobs(logits.expand(3, -1), torch.tensor([4, 4, 4]), [2, None, 0])
    assert found.id == 4
    assert found.logprob == pytest.approx(raw[4], abs=1e-12)
    assert found.top == ((0, pytest.approx(raw[0])), (4, pytest.approx(raw[4])))
    assert none is None
    assert (alone.logprob, alone.top) == (pytest.approx(raw[4]), ())


def test_draws_follow_the_probabilities():
    """Chi-square over 4 cells and 4000 draws; 16.3 is exceeded by chance once in 1000, and the seed is fixed."""
    logits = row(1.0, 3.0, 2.0, -1.0, dtype=torch.float32)
    sampler = Sampler([Request((0,), seed=11)], LIMITS)
    counts = torch.bincount(torch.tensor([sampler(logits).item() for _ in range(4000)]), minlength=4).double()
    expected = 4000 * logits.double().softmax(-1)[0]
    assert ((counts - expected) ** 2 / expected).sum() < 16.3


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_smallest_and_the_largest_draw_hit_tokens_that_have_probability(uniform):
    logits = row(-INF, 0.1, 0.7, -INF, -2.3, -INF, dtype=torch.float32)
    assert sample.draw(logits, column(uniform)).item() == (1 if uniform == 0.0 else 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused_and_not_drawn_from(temperature):
    sampler = Sampler([Request((0,), temperature=temperature, seed=0)], LIMITS)
    with pytest.raises(OnehopError, match=r"^the model's logits are not numbers \(NaN\): .* Try dtype float32\.$"):
        sampler(row(0.0, math.nan, 1.0, 0.0, dtype=torch.float32))


def test_global_random_numbers_neither_matter_nor_move():
    logits = torch.zeros(1, 4)
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        sampler = Sampler([Request((0,), seed=9)], LIMITS)
        runs.append([sampler(logits).item() for _ in range(30)])
        assert torch.equal(before, torch.random.get_rng_state())
    assert runs[0] == runs[1]


def test_a_row_that_stays_draws_on_as_if_nobody_had_left():
    logits = torch.zeros(1, 4)
    staying = Request((0,), seed=9, repetition_penalty=1.1)
    batch = Sampler([Request((0,), seed=1), staying], LIMITS)
    alone = Sampler([staying], LIMITS)
    together = [batch(logits.expand(2, -1))[1].item() for _ in range(5)]
    batch.keep([1])
    together += [batch(logits).item() for _ in range(5)]
    assert together == [alone(logits).item() for _ in range(10)]


@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_what_a_model_never_says_is_not_drawn_however_likely(temperature):
    limits = Limits(n_ids=4, max_len=64, never=frozenset({1, 3, 9}))
    logits = torch.tensor([[0.0, 9.0, 1.0, 8.0, 7.0]])
    requests = [Request((0,), temperature=temperature, seed=seed) for seed in range(20)]
    drawn = {Sampler([request], limits)(logits).item() for request in requests}
    assert drawn == ({2} if temperature == 0.0 else {0, 2})
