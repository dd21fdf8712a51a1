"""Further tokens through a compiled graph: the same answers, from a cache whose shapes do not change, or a reason."""

import pytest
import torch

from onehop.cli.main import main
from onehop.generate import compiled, engine
from onehop.generate.compiled import OneToken
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
    lm.one_token = OneToken(model, say=said.append, backend=backend)
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
    monkeypatch.setattr(engine, "FIRST_GUESS", 1)
    monkeypatch.setattr(engine, "slots", lambda n: 8)
    model = build(two_kinds_of_layer(), seed=0)
    lm, said = through(model)
    prompt = PROMPTS[1:2]
    assert answers(lm, prompt, n=20)[0] == answers(LanguageModel(model), prompt, n=20)[0]
    assert [slots for _, slots in lm.one_token._graphs] == [8, 16, 32]
    assert len(said) == 6


def test_weights_that_change_and_listeners_that_come_are_noticed():
    torch.compiler.reset()
    model = build(decoder(), seed=0)
    lm, said = through(model)
    before = answers(lm)[0]
    with torch.no_grad():
        model.layers[0].ffn.w2.weight.neg_()
    after = answers(lm)[0]
    assert before != after == answers(LanguageModel(model))[0]
    heard = []
    with_hook = model.layers[1].register_forward_hook(lambda module, args, out: heard.append(1))
    assert answers(lm)[0] == after
    assert heard
    with_hook.remove()
    assert len([line for line in said if line.startswith("compiled")]) == 3


def test_what_fails_to_compile_is_said_once_and_computed_as_it_is_written(monkeypatch):
    model = build(decoder(), seed=0)
    lm, said = through(model)

    def failing(*args, **options):
        def graph(*args):
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
    monkeypatch.setattr(compiled, "no_compiler", lambda device: "there is none")
    assert main(["generate", "fables-tiny", "Once", "--max-new-tokens", "3", "--seed", "1", "--compile"]) == 0
    assert capsys.readouterr().err.count("not compiled: there is none") == 1


def test_room_in_a_fixed_cache_is_made_by_doubling():
    cache = Cache([CacheSpec({"k": (1, 2), "v": (1, 2)})], batch=1, kind="fixed", capacity=2)
    layer = cache.layers[0]
    for position in range(5):
        cache.make_room(1)
        cache.start(Places.run(position, 1))
        new = torch.full((1, 1, 1, 2), float(position))
        keys = layer.extend(k=new, v=-new)
    assert keys.places.at.tolist() == [[0, 1, 2, 3, 4, -1, -1, -1]]
    assert keys.k[0, :5, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert keys.v[0, :, 0, 1].tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0, 0.0]
    growing = Cache([CacheSpec({"k": (1, 2)})], batch=1)
    before = growing.nbytes
    growing.make_room(10**6)
    assert growing.nbytes == before


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
        ids, logprobs = answers(lm)
        plain, expected = answers(LanguageModel(model))
        if dtype == torch.float32:
            assert ids == plain
            torch.testing.assert_close(logprobs, expected, rtol=1e-4, atol=1e-4)  # a dozen roundings of numbers near 10
        else:
            first = [row[0] for row in ids]
            assert first == [row[0] for row in plain]
        with torch.no_grad():
            model.layers[0].ffn.w2.weight.neg_()  # frozen weights are not looked at again
    assert sum(line.startswith("compiled in") for line in said) == 2
