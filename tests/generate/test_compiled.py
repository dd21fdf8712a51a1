"""Further tokens through a compiled graph: the same answers, from a cache whose shapes do not change, or a reason."""

from pathlib import Path

import pytest
import torch

from onehop.cli.main import main
from onehop.generate import compiled
from onehop.generate.compiled import OneToken
from onehop.generate.engine import left_padded
from onehop.lm import LanguageModel
from onehop.model import build
from onehop.model.compiler import no_compiler
from onehop.parts.cache import Cache, CacheSpec
from onehop.parts.places import Places
from tests.small_models import MOE, decoder, encoder_decoder, two_kinds_of_layer

MODELS = {
    "rope": decoder(),
    "learned positions": decoder("none", embed={"position": "learned"}),
    "alibi": decoder("alibi"),
    "t5": decoder("t5"),
    "angles by length": decoder(scaling={"kind": "dynamic", "factor": 2.0, "original_max_len": 8}),
    "windows": two_kinds_of_layer(),
    "softcap": decoder(attention={"softcap": 5.0}),
}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]


def through(model, backend="aot_eager", **options):
    """A LanguageModel whose further tokens go through a graph (one that needs no C++ compiler), and what is said."""
    said = []
    lm = LanguageModel(model, **options)
    lm._one_token = OneToken(model, say=said.append, backend=backend)
    return lm, said


def answers(lm, prompts=PROMPTS, n=9, **options):
    found = lm.generate(prompts, max_new_tokens=n, **{"temperature": 0.0, "logprobs": 0, **options})
    return [done.token_ids for done in found], torch.tensor([t.logprob for done in found for t in done.logprobs])


@pytest.fixture(autouse=True)
def _able(monkeypatch):
    monkeypatch.setattr(compiled, "no_compiler", lambda device: None)
    monkeypatch.setattr(compiled, "made_by_amd", lambda: False)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_gives_the_answers_that_the_model_gives(name):
    torch.compiler.reset()
    model = build(MODELS[name], seed=0, dtype=torch.float64)
    lm, said = through(model)
    for prompts in (PROMPTS, PROMPTS[1:2]):
        ids, logprobs = answers(lm, prompts)
        plain, expected = answers(LanguageModel(model), prompts)
        assert ids == plain
        torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)  # float32, rounded at up to 20
    assert [line.partition(" in ")[0] for line in said] == [
        "compiling: the next token takes up to a minute",
        "compiled",
    ] * 2


def test_draws_and_rows_that_end_early_are_those_of_the_model():
    torch.compiler.reset()
    model = build(decoder(), seed=0)
    lm, _ = through(model, eos_ids=frozenset({2, 3}))
    options = {"temperature": 1.0, "seed": [5, 6, 7], "n": 30}
    ids, _ = answers(lm, **options)
    assert len({len(row) for row in ids}) > 1  # rows leave one after the other
    assert ids == answers(LanguageModel(model, eos_ids=frozenset({2, 3})), **options)[0]


def test_a_cache_that_is_full_doubles_and_has_a_graph_of_its_own(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(compiled, "SLOTS", 8)
    monkeypatch.setattr(compiled, "TIMES", 2)
    model = build(two_kinds_of_layer(), seed=0)
    lm, said = through(model)
    prompt = PROMPTS[1:2]
    assert answers(lm, prompt, n=20)[0] == answers(LanguageModel(model), prompt, n=20)[0]
    assert [slots for _, slots, _ in lm._one_token._graphs] == [8, 16, 32]
    assert len(said) == 6


def test_the_cache_of_a_graph_begins_with_the_fewest_slots_as_the_text_says():
    lm, _ = through(build(decoder(max_len=4096), seed=0))
    for prompt, size in ((20, 512), (511, 512), (512, 2048)):
        assert lm.engine().start([[1] * prompt], room=4096 - prompt).cache.books[0].slots == size
    text = " ".join((Path(__file__).parents[2] / "docs" / "optimizing.md").read_text().split())
    number = {4: "four"}
    assert f"({compiled.SLOTS} for a start, and {number[compiled.TIMES]} times as many each time they are full)" in text
    assert f"at most {number[compiled.MOST]} in all" in text


def test_no_more_graphs_are_made_than_a_few_which_is_said_once(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(compiled, "MOST", 2)
    model = build(decoder(), seed=0)
    lm, said = through(model)
    for prompts in (PROMPTS, PROMPTS[:2], PROMPTS[:1], PROMPTS[1:2], PROMPTS):
        assert answers(lm, prompts)[0] == answers(LanguageModel(model), prompts)[0]
    assert len([line for line in said if line.startswith("compiled")]) == 2
    assert [line for line in said if line.startswith("not")] == [
        "not compiled: there are 2 graphs, and no more are made: none for 1 rows of 512 slots"
    ]
    assert [lm._one_token.ready(rows, 9) for rows in (1, 2, 3)] == [False, True, True]
    for prompts in (PROMPTS[:1], [[1] * 512] * 3):
        session = lm.engine().start(prompts, room=9)
        assert (session.cache.kind, session.one_token) == ("growing", None)  # without a graph, as it is without one


def test_an_answer_that_no_further_graph_is_made_for_goes_on_in_a_growing_cache(monkeypatch):
    torch.compiler.reset()
    for name, value in (("MOST", 1), ("SLOTS", 8), ("TIMES", 2)):
        monkeypatch.setattr(compiled, name, value)
    model = build(two_kinds_of_layer(), seed=0)
    lm, said = through(model)
    ids, logprobs = answers(lm, PROMPTS[1:2], n=20)
    plain, expected = answers(LanguageModel(model), PROMPTS[1:2], n=20)
    assert ids == plain
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)  # float32, rounded at up to 20
    assert [line.partition(" ")[0] for line in said] == ["compiling:", "compiled", "not"]
    session = lm.engine().start(PROMPTS[1:2], room=20)
    session.advance(torch.tensor([1]))
    assert session.cache.kind == "fixed"
    session.advance(torch.tensor([1]))
    assert (session.cache.kind, session.cache.books[0].places.n) == ("growing", 9)


def test_rows_that_stay_when_others_leave_are_read_as_far_as_they_go():
    torch.compiler.reset()
    model = build(decoder(), seed=0, dtype=torch.float64)
    for prompts in (PROMPTS, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]):
        sessions = [lm.engine().start(prompts, room=9) for lm in (through(model)[0], LanguageModel(model))]
        for session in sessions:
            session.advance(torch.tensor([1, 2, 3]))
            session.keep([2, 0])
            session.advance(torch.tensor([4, 5]))
        graph, plain = sessions
        torch.testing.assert_close(graph.logits, plain.logits, rtol=1e-9, atol=1e-9)
        assert (graph.cache.kind, graph.one_token) == ("growing", None)
        found, expected = graph.cache.books[0].places, plain.cache.books[0].places
        assert found.at.tolist() == expected.at.tolist()
        assert found.first == expected.first  # known to be whole where it is, which spares the mask


def test_weights_that_change_are_frozen_anew_and_who_listens_hears_the_model():
    torch.compiler.reset()
    model = build(decoder(), seed=0)
    lm, said = through(model)
    before = answers(lm)[0]
    with torch.no_grad():
        model.layers[0].ffn.w2.weight.neg_()
    after = answers(lm)[0]
    assert before != after == answers(LanguageModel(model))[0]
    heard = []
    for name in ("a", "b"):
        hook = model.layers[1].register_forward_hook(lambda module, args, out, name=name: heard.append(name))
        assert answers(lm)[0] == after
        hook.remove()
    assert heard == ["a"] * (len(heard) // 2) + ["b"] * (len(heard) // 2)
    assert len(heard) > 8
    assert len([line for line in said if line.startswith("compiled")]) == 2


def test_another_model_or_kernel_in_its_place_is_what_answers():
    torch.compiler.reset()
    lm, _ = through(build(decoder(), seed=0))
    answers(lm)
    other = build(decoder(), seed=1)
    lm.model, lm.kernel = other, "plain"
    assert answers(lm)[0] == answers(LanguageModel(other))[0]
    assert (lm._one_token.model, lm._one_token.kernel) == (other, "plain")


def test_every_graph_is_made_without_guards_and_with_frozen_weights(monkeypatch):
    asked, frozen = [], []

    def recorded(function, **options):
        asked.append(options["options"].pop("guard_filter_fn")([1, 2]))  # as torch.compile takes it out

        def graph(*args, **options):
            frozen.append(torch._inductor.config.freezing)
            return function(*args, **options)

        return graph

    monkeypatch.setattr(compiled.torch, "compile", recorded)
    model = build(decoder(), seed=0)
    lm, _ = through(model, backend="inductor")
    for prompts in (PROMPTS, PROMPTS[:1]):
        assert answers(lm, prompts)[0] == answers(LanguageModel(model), prompts)[0]
    assert asked == [[False, False]] * 2
    assert frozen.count(True) == 2


def test_a_stream_that_is_begun_later_has_the_weights_of_then():
    torch.compiler.reset()
    model = build(decoder(), seed=0, dtype=torch.float64)
    lm, _ = through(model)
    answers(lm, PROMPTS[:1])
    pieces = lm.stream(PROMPTS[0], max_new_tokens=9, temperature=0.0)
    model.float()
    assert [piece.token_id for piece in pieces] == answers(LanguageModel(model), PROMPTS[:1])[0][0]


def test_what_fails_to_compile_is_said_once_and_computed_as_it_is_written(monkeypatch):
    model = build(decoder(), seed=0)
    lm, said = through(model)

    def failing(*args, **options):
        def graph(*args, **options):
            raise torch._dynamo.exc.Unsupported("no such thing\nin line 7")

        return graph

    monkeypatch.setattr(compiled.torch, "compile", failing)
    assert answers(lm)[0] == answers(LanguageModel(model))[0] == answers(lm)[0]
    assert said == ["compiling: the next token takes up to a minute", "not compiled: no such thing in line 7"]


def test_experts_whose_products_are_not_grouped_in_a_graph_are_computed_as_they_are_written():
    torch.compiler.reset()
    model = build(decoder(ffn=MOE), seed=0)
    lm, said = through(model)
    assert answers(lm)[0] == answers(LanguageModel(model))[0]
    assert [line.partition(":")[0] for line in said] == ["compiling", "not compiled"]


def test_where_nothing_can_be_compiled_the_reason_is_told(monkeypatch, capsys):
    model = build(encoder_decoder(), seed=0)
    with pytest.warns(UserWarning, match="^not compiled: only decoder-only models are"):
        lm = LanguageModel(model, start_id=1, compile=True)
    assert answers(lm)[0] == answers(LanguageModel(model, start_id=1))[0]
    monkeypatch.setattr(compiled, "made_by_amd", lambda: True)
    with pytest.warns(UserWarning, match=r"^not compiled: a graph multiplies float32 by MKL, .* Take bfloat16$"):
        LanguageModel(build(decoder()), compile=True)
    assert OneToken(build(decoder(), dtype=torch.bfloat16)).ready()
    with torch.inference_mode():
        uncounted = build(decoder(), dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="^not compiled: its weights were made in inference mode"):
        LanguageModel(uncounted, compile=True)
    monkeypatch.setattr(compiled, "no_compiler", lambda device: "there is none")
    assert main(["generate", "fables-tiny", "Once", "--max-new-tokens", "3", "--seed", "1", "--compile"]) == 0
    assert capsys.readouterr().err.count("not compiled: there is none") == 1


def test_a_growing_cache_that_is_fixed_goes_on_and_makes_room():
    cache = Cache([CacheSpec({"k": (1, 2), "v": (1, 2)})], batch=1, capacity=2)
    layer = cache.layers[0]
    for position in range(5):
        if position == 2:
            cache.fix()
        cache.make_room(1)
        cache.start(cache.next_places(1))
        new = torch.full((1, 1, 1, 2), float(position))
        keys = layer.extend(k=new, v=-new)
    assert keys.places.at.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1]]
    assert keys.k[0, :5, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert keys.v[0, :, 0, 1].tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0, 0.0]
    cache.rollback(3)
    assert (cache.length, cache.books[0].filled) == (3, 3)
    empty = Cache([CacheSpec({"k": (1, 2)})], batch=1, kind="fixed", capacity=0)
    empty.make_room(3)
    assert empty.books[0].capacity == 4
    growing = Cache([CacheSpec({"k": (1, 2)})], batch=1)
    before = growing.nbytes
    growing.make_room(10**6)
    assert growing.nbytes == before


@pytest.mark.parametrize("prompts", [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3]]])
def test_a_fixed_cache_that_is_loosened_goes_on_as_one_that_always_grew(prompts):
    two = [Cache([CacheSpec({"k": (1, 2), "v": (1, 2)})], batch=2, capacity=4) for _ in range(2)]
    at = left_padded(prompts, "cpu")[1]
    for cache in two:
        for step in range(6):
            if cache is two[0] and step in (1, 3):
                cache.fix() if step == 1 else cache.loosen()
            places = cache.next_places(1) if step else Places.run(0, 3) if at is None else Places(at)
            cache.make_room(places.n)
            cache.start(Places(places.at.expand(2, 1)) if cache.kind == "fixed" else places)  # as a graph is given them
            new = torch.full((2, places.n, 1, 2), float(step))
            keys = cache.layers[0].extend(k=new, v=-new)
        assert cache.kind == "growing"
        assert keys.k[0, :, 0, 0].tolist() == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    ours, theirs = two[0].books[0], two[1].books[0]
    assert ours.places.at.tolist() == theirs.places.at.tolist()
    assert (ours.places.first, ours.uniform, two[0].length) == (theirs.places.first, theirs.uniform, two[1].length)
    gap = Cache([CacheSpec({"k": (1, 2)})], batch=1, kind="fixed", capacity=4)
    gap.start(Places(torch.tensor([[0, -1, 2]])))
    gap.loosen()
    gap.start(gap.next_places(1))
    assert gap.books[0].places.at.tolist() == [[0, -1, 2, 3]]  # as many slots as positions, but no run


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["rope", "learned positions", "windows"])
def test_a_graph_with_frozen_weights_gives_the_answers_that_the_model_gives(name, dtype):
    if no_compiler(torch.device("cpu")):
        pytest.skip("no compiler")
    torch.compiler.reset()
    model = build(MODELS[name], seed=0, dtype=dtype)
    lm, said = through(model, backend="inductor")
    for _ in range(2):
        logits = []
        for one in (lm, LanguageModel(model)):
            session = one.engine().start(PROMPTS, room=9)
            for token in range(5):
                session.advance(torch.full((3,), token))
            logits.append(session.logits.float())
        # a dozen roundings follow each other, each of 2^-24 of a number at most, or of 2^-9 in bfloat16
        assert (logits[0] - logits[1]).norm() < (1e-5 if dtype == torch.float32 else 0.05) * logits[1].norm()
        with torch.no_grad():
            model.layers[0].ffn.w2.weight.neg_()  # frozen weights are not looked at again
    assert sum(line.startswith("compiled in") for line in said) == 2
