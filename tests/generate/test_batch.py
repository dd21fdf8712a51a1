"""Requests side by side are answered as if each were alone, and their text is cut where it should be."""

import pytest
import torch

from onehop.base.errors import RequestError
from onehop.generate import Engine, Limits, Request, run
from tests.golden import case_model
from tests.small_models import CONFIGS, DYNAMIC, LONGROPE, decoder, encoder_decoder, small_model
from tests.text.small_tokenizers import byte_fallback, bytes_only

LIMITS = Limits(n_ids=13, max_len=64)
PROMPTS = [(3, 0, 9), (1, 5, 2, 9, 4), (0, 7, 7, 2, 12, 6, 1)]
LAST_LOGITS = [
    [-1.1168542617, 1.6016515482, -1.3241381743, -3.0228324082, -0.14783339936, 0.77029329534, -0.66435465682,
     0.28155181318, 2.0883810866, -3.8587836001, -1.6873194079, -6.0078596699, -4.5110220102],
    [1.4159731548, 2.3067134668, 0.6315712366, 1.7304416372, -4.5369187891, -2.5682589837, 1.4423150852,
     -3.0092930968, -0.19669018196, -0.66255570314, 3.4144751115, 0.96043695894, 0.0026664814935],
    [-3.5428130163, -0.39521012678, -2.7567777172, -0.038397941252, -2.666821266, 1.015844718, 1.8896822334,
     -0.31953370361, -1.0298470547, -4.1721750341, 0.62755535973, -2.3647685016, -3.8038202761],
]  # fmt: skip
GREEDY = [[8, 1, 6, 1, 6, 8], [10, 6, 6, 6, 6, 10], [6, 10, 10, 10, 10, 6]]


def answers(model, requests, limits=LIMITS, tokenizer=None, **engine):
    """The ids of each answer."""
    found = [[] for _ in requests]
    for piece in run(Engine(model, **engine), requests, limits=limits, tokenizer=tokenizer):
        found[piece.request].append(piece.token_id)
    return found


def greedy(prompt, n=6, **own):
    return Request(tuple(prompt), max_new_tokens=n, temperature=0.0, **own)


def test_a_ragged_batch_gives_the_known_logits_and_answers():
    """Id 0 pads and is also a real token here, so a mask made of ids would be wrong."""
    model = case_model()
    session = Engine(model).start(PROMPTS, room=6)
    torch.testing.assert_close(session.logits, torch.tensor(LAST_LOGITS, dtype=torch.float64), atol=1e-9, rtol=0)
    assert answers(model, [greedy(p) for p in PROMPTS]) == GREEDY
    assert [answers(model, [greedy(p)])[0] for p in PROMPTS] == GREEDY


def test_padding_on_the_right_changes_nothing_either():
    model = case_model()
    width = max(map(len, PROMPTS))
    tokens = torch.tensor([[*p, *[0] * (width - len(p))] for p in PROMPTS])
    at = torch.tensor([[*range(len(p)), *[-1] * (width - len(p))] for p in PROMPTS])
    with torch.no_grad():
        logits = model(tokens, at=at)
    last = logits[torch.arange(3), torch.tensor([len(p) - 1 for p in PROMPTS])]
    torch.testing.assert_close(last, torch.tensor(LAST_LOGITS, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("again", [1.4, 0.5])
@torch.no_grad()
def test_penalties_count_what_a_loop_over_each_text_alone_counts_and_no_padding(again):
    """The shorter row is padded with id 0, which it answers with at once (1.4) or does not (0.5) by its own tokens."""
    model, prompts = case_model(), [(5, 5, 5, 11), PROMPTS[2]]
    own = {"repetition_penalty": again, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    found = answers(model, [greedy(p, 12, **own) for p in prompts])
    assert (found[0][0] == 0) == (again == 1.4)
    for prompt, answer in zip(prompts, found):
        said = []
        for _ in range(12):
            logits = model(torch.tensor([[*prompt, *said]]))[0, -1].tolist()
            for i in {*prompt, *said}:
                logits[i] = logits[i] / again if logits[i] > 0 else logits[i] * again
                logits[i] -= 0.2 * said.count(i) + 0.3 * (i in said)
            said.append(max(range(13), key=logits.__getitem__))
        assert answer == said


@torch.no_grad()
def test_log_probabilities_of_answers_are_those_of_one_pass_over_each_text():
    model, found = case_model(), [[] for _ in PROMPTS]
    own = {"temperature": 1.3, "top_p": 0.9, "max_new_tokens": 6, "logprobs": 2}
    for piece in run(Engine(model), [Request(p, seed=i, **own) for i, p in enumerate(PROMPTS)], limits=LIMITS):
        found[piece.request].append(piece.logprob)
    for prompt, entries in zip(PROMPTS, found):
        text = [*prompt, *(entry.id for entry in entries)]
        logprobs = model(torch.tensor([text]))[0].log_softmax(-1)[len(prompt) - 1 : -1]  # (6, V)
        for entry, row in zip(entries, logprobs, strict=True):
            best = row.topk(2)
            assert entry.logprob == pytest.approx(row[entry.id].item(), abs=1e-9)  # float64, sums in another order
            assert [i for i, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-9)


@pytest.mark.parametrize("cache", ["growing", "fixed", "ring"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_equals_each_request_alone(name, cache):
    """Logits in float64 at every step, although sums over padded keys are longer: 1e-10 leaves room for their order."""
    model = small_model(CONFIGS[name])
    together = Engine(model, cache=cache).start(PROMPTS, room=4)
    alone = [Engine(model).start([p], room=4) for p in PROMPTS]
    for step in range(4):
        expected = torch.cat([session.logits for session in alone])
        torch.testing.assert_close(together.logits, expected, atol=1e-10, rtol=0)
        tokens = torch.tensor([(step + b) % 13 for b in range(3)])
        together.advance(tokens)
        for b, session in enumerate(alone):
            session.advance(tokens[b : b + 1])


def test_sources_of_unequal_length_are_answered_as_alone():
    model, limits = small_model(encoder_decoder()), Limits(n_ids=13, max_len=64, start_id=0, has_source=True)
    requests = [greedy(p) for p in PROMPTS]
    together = answers(model, requests, limits)
    assert together == [answers(model, [r], limits)[0] for r in requests]
    source, target = torch.tensor([PROMPTS[1]]), [0]
    for token_id in together[1]:  # and as by the whole model, without a cache
        assert model(source, torch.tensor([target]))[0, -1].argmax() == token_id
        target.append(token_id)


@pytest.mark.parametrize("chunk", [1, 3, 10, 2048])
def test_a_prompt_may_be_read_in_chunks_of_any_size(chunk):
    model = case_model()
    session = Engine(model, chunk=chunk).start(PROMPTS, room=1)
    torch.testing.assert_close(session.logits, torch.tensor(LAST_LOGITS, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@torch.no_grad()
def test_a_prompt_whose_angles_depend_on_its_length_is_not_read_in_chunks(scaling):
    """Prompts of 12 and 5 tokens where 8 are the original length."""
    model, prompts = small_model(decoder(scaling=scaling)), [[1, 5, 2, 9, 4, 7, 3, 3, 0, 12, 5, 8], [1, 5, 2, 9, 4]]
    alone = torch.stack([model(torch.tensor([prompt]))[0, -1] for prompt in prompts])
    for chunk in (3, 2048):
        session = Engine(model, chunk=chunk).start(prompts, room=1)
        torch.testing.assert_close(session.logits, alone, atol=1e-10, rtol=0)


def test_rows_that_are_done_leave_and_the_others_go_on():
    model = case_model()
    requests = [greedy(PROMPTS[0], 1), greedy(PROMPTS[1], 6), greedy(PROMPTS[2], 3)]
    assert answers(model, requests) == [GREEDY[0][:1], GREEDY[1], GREEDY[2][:3]]


def test_more_requests_than_rows_run_in_turns():
    model = case_model()
    requests = [greedy(p) for p in PROMPTS * 3]
    engine = Engine(model)
    found = [[] for _ in requests]
    for piece in run(engine, requests, limits=LIMITS, rows=2):
        found[piece.request].append(piece.token_id)
    assert found == GREEDY * 3


def test_a_window_shorter_than_the_text_is_kept_in_a_ring_and_no_other_is():
    windowed = Engine(small_model(CONFIGS["window"]))
    assert windowed.start([(1, 2)], room=9).cache.kind == "ring"
    assert windowed.start([(1,)], room=2).cache.kind == "growing"
    assert Engine(case_model()).start([(1, 2)], room=9).cache.kind == "growing"


COMPANY = [
    [],
    [Request((4, 7), seed=7, temperature=1.0)],
    [Request((4, 7), temperature=1.3)],
    [Request((9,), temperature=0.0, max_new_tokens=2), Request((1, 5, 2), seed=42, max_new_tokens=12)],
    [Request((0, 3, 3, 8, 1), seed=1, temperature=0.7, max_new_tokens=5)] * 3,
    [Request((4,), seed=1, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=1.3, presence_penalty=0.5)],
]


def test_a_seeded_request_draws_the_same_in_any_company_and_slot():
    model, mine = case_model(), Request((1, 5, 2), seed=42, max_new_tokens=12)
    (expected,) = answers(model, [mine])
    for others in COMPANY:
        for slot in {0, len(others) // 2, len(others)}:
            torch.manual_seed(slot)
            requests = [*others[:slot], mine, *others[slot:]]
            together = answers(model, requests)
            assert together[slot] == expected
            assert [len(answer) for answer in together] == [request.room(LIMITS) for request in requests]


def test_global_draws_between_the_steps_change_nothing():
    model, mine = case_model(), Request((1, 5, 2), seed=42, max_new_tokens=12)
    (expected,) = answers(model, [mine])
    found = []
    for piece in run(Engine(model), [mine], limits=LIMITS):
        torch.rand(3)
        found.append(piece.token_id)
    assert found == expected


def test_different_seeds_give_different_answers():
    model = case_model()
    drawn = answers(model, [Request((1, 5, 2), seed=seed, max_new_tokens=12) for seed in range(20)])
    assert len({tuple(answer) for answer in drawn}) >= 19


def test_first_tokens_over_many_seeds_follow_the_models_probabilities():
    """Chi-square over the tokens expected at least 5 times in 2000, the rest pooled: below 45."""
    probabilities = torch.tensor([
        0.0009937207686399, 0.004377469951335, 0.01669562828573, 0.04495438616779, 0.03346816434058, 0.1169108119571,
        0.4503971678958, 0.002241450139229, 0.1045498108599, 0.06388181481103, 0.008747592715577, 0.06358368478306,
        0.08919829732422,
    ])  # fmt: skip
    session = Engine(case_model()).start([(1, 5, 2)], room=1)
    torch.testing.assert_close(session.logits.softmax(-1)[0].float(), probabilities, atol=1e-7, rtol=0)
    requests = [Request((1, 5, 2), seed=seed, max_new_tokens=1) for seed in range(2000)]
    found = [piece.token_id for piece in run(Engine(case_model()), requests, limits=LIMITS, rows=2000)]
    counts, expected = torch.bincount(torch.tensor(found), minlength=13).float(), 2000 * probabilities
    often = expected >= 5
    counts = torch.cat([counts[often], counts[~often].sum().view(1)])
    expected = torch.cat([expected[often], expected[~often].sum().view(1)])
    assert ((counts - expected) ** 2 / expected).sum() < 45


def test_an_end_token_ends_an_answer_unless_it_is_ignored():
    model = case_model()
    limits = Limits(n_ids=13, max_len=64, eos_ids=frozenset({6, 12}))
    assert answers(model, [greedy(PROMPTS[0])], limits) == [[8, 1, 6]]
    assert answers(model, [greedy(PROMPTS[0], ignore_eos=True)], limits) == [GREEDY[0]]
    (*_, last) = run(Engine(model), [greedy(PROMPTS[0])], limits=limits)
    assert last.finish_reason == "stop"
    (*rest, last) = run(Engine(model), [greedy(PROMPTS[0])], limits=LIMITS)
    assert last.finish_reason == "length"
    assert {piece.finish_reason for piece in rest} == {None}


def test_an_answer_ends_where_the_context_ends():
    limits = Limits(n_ids=13, max_len=8)
    (*_, last) = pieces = list(run(Engine(case_model()), [greedy((1, 5, 2), 100)], limits=limits))
    assert len(pieces) == 6
    assert last.finish_reason == "length"


def test_a_model_with_learned_positions_fills_its_context_and_no_more():
    model = small_model(CONFIGS["learned"])
    assert len(answers(model, [greedy([1] * 60, 100), greedy([2], 3)])[0]) == 5


def test_log_probabilities_do_not_depend_on_how_tokens_are_drawn():
    model = case_model()
    plain = list(run(Engine(model), [greedy(PROMPTS[1], logprobs=3)], limits=LIMITS))
    drawn = Request(
        PROMPTS[1], temperature=1e-3, seed=1, top_p=0.9, max_new_tokens=6, logprobs=20, repetition_penalty=1.0001
    )
    for a, b in zip(plain, run(Engine(model), [drawn], limits=LIMITS)):
        assert a.logprob.top == b.logprob.top[:3]
        assert a.logprob.logprob == b.logprob.logprob < 0
        assert sum(torch.tensor([value for _, value in b.logprob.top]).exp()) == pytest.approx(1)


def texts(monkeypatch, tokenizer, ids, prompt=(72,), eos_ids=(), **own):
    """Pieces of an answer that says exactly `ids`."""
    limits = Limits(n_ids=tokenizer.vocab_size, max_len=10**6, eos_ids=frozenset(eos_ids))
    said = iter(ids)

    class Session:
        logits = torch.empty(1, 1)

        def advance(self, tokens):
            pass

    class Machine:
        device = "cpu"

        def start(self, *_, **__):
            return Session()

    monkeypatch.setattr("onehop.generate.batch.Sampler.__call__", lambda *_: torch.tensor([next(said)]))
    request = Request(tuple(prompt), temperature=0.0, max_new_tokens=len(ids), **own)
    return list(run(Machine(), [request], limits=limits, tokenizer=tokenizer))


@pytest.mark.parametrize(
    ("stop", "text", "length"),
    [
        (("END",), "one ", 7),
        (("D two",), "one EN", 11),
        (("two", "END"), "one ", 7),
        (("nothing",), "one END two", 11),
        (("o",), "", 1),
    ],
)
def test_a_stop_string_across_tokens_ends_the_answer_before_itself(monkeypatch, stop, text, length):
    pieces = texts(monkeypatch, bytes_only(), b"one END two", stop=stop)
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) == length
    assert pieces[-1].finish_reason == ("length" if text == "one END two" else "stop")


def test_text_that_was_held_back_for_a_stop_string_comes_with_the_last_piece(monkeypatch):
    pieces = texts(monkeypatch, bytes_only(), b"an EN", stop=("END",))
    assert [piece.text for piece in pieces] == ["a", "n", " ", "", "EN"]


def test_half_a_character_waits_and_is_not_lost_at_the_end(monkeypatch):
    pieces = texts(monkeypatch, bytes_only(), "é€".encode()[:4])
    assert [piece.text for piece in pieces] == ["", "é", "", "\ufffd"]


def test_a_stop_string_that_the_end_of_the_text_completes_still_counts(monkeypatch):
    pieces = texts(monkeypatch, bytes_only(), b"a\xff", stop=("\ufffd",))
    assert ("".join(piece.text for piece in pieces), pieces[-1].finish_reason) == ("a", "stop")


def test_an_end_token_is_counted_and_not_shown(monkeypatch):
    tokenizer = bytes_only()
    pieces = texts(monkeypatch, tokenizer, [72, 105, 33], eos_ids=[33])  # "!", an ordinary token, ends here
    assert "".join(piece.text for piece in pieces) == "Hi"
    assert [piece.token_id for piece in pieces] == [72, 105, 33]
    assert pieces[-1].finish_reason == "stop"


def test_an_answers_first_space_is_part_of_it(monkeypatch):
    """A tokenizer that strips the first space of a text must not strip it in the middle of one."""
    tokenizer = byte_fallback()
    prompt, whole = tokenizer.encode("the"), tokenizer.encode("the the")
    pieces = texts(monkeypatch, tokenizer, whole[len(prompt) :], prompt=prompt)
    assert "".join(piece.text for piece in pieces) == " the"


def test_without_a_tokenizer_stop_strings_are_refused_and_text_stays_empty():
    with pytest.raises(RequestError, match=r"^stop strings need a tokenizer"):
        run(Engine(case_model()), [greedy((1,), stop=("a",))], limits=LIMITS)
    assert {piece.text for piece in run(Engine(case_model()), [greedy((1,))], limits=LIMITS)} == {""}


def test_a_wrong_request_is_refused_before_any_other_is_begun():
    with pytest.raises(RequestError, match="token id 13"):
        run(Engine(case_model()), [greedy((1,)), greedy((13,))], limits=LIMITS)
