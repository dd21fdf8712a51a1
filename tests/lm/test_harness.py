"""lm-eval's questions: log-likelihoods by hand, windows as its documentation draws them, answers, and itself."""

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import onehop
from onehop.base.errors import RequestError
from onehop.cli.main import main
from onehop.lm import LanguageModel, scoring
from onehop.lm.harness import Answers, answer_options
from tests.golden import case_model
from tests.small_models import decoder, small_model
from tests.text.small_tokenizers import bytes_only


def asked(*args):
    return SimpleNamespace(args=args)


@pytest.fixture(scope="module")
def lm():
    """A random model of bytes in float64, context 16, with an end token (256) and no begin token."""
    cfg = decoder(vocab_size=260, max_len=16)
    return LanguageModel(small_model(cfg).double(), bytes_only(eos="<|eos|>"))


def by_hand(lm, ids, n):
    """Log-probabilities of the last n ids, one forward pass over all before the last."""
    logits = lm.model(torch.tensor([ids[:-1]]))[0, -n:, : lm.limits.n_ids]
    return logits.detach().log_softmax(-1).gather(-1, torch.tensor(ids[-n:])[:, None])[:, 0], logits.argmax(-1).tolist()


def test_log_likelihoods_are_those_by_hand_whatever_stands_beside_them(lm):
    pairs = [("the cat", " sat"), ("a", "b"), ("", "end"), ("much too long for a context", " of 16")]
    found = Answers(lm).loglikelihood([asked(*pair) for pair in pairs])
    for (context, continuation), (logprob, is_greedy) in zip(pairs, found, strict=True):
        before, after = list(context.encode()) or [256], list(continuation.encode())
        expected, best = by_hand(lm, [*before, *after][-16:], len(after))
        assert logprob == pytest.approx(float(expected.sum()), abs=1e-9)  # float64
        assert is_greedy == (best == after)


def test_what_the_model_would_say_is_greedy(lm):
    (said,) = lm.generate(["the"], max_new_tokens=3, temperature=0.0, ignore_eos=True)
    ids = lm.encode("the")
    (score, other) = scoring.score_all(lm, [(ids, said.token_ids), (ids, [*said.token_ids[:-1], 0])])
    assert (score.is_greedy, other.is_greedy) == (True, said.token_ids[-1] == 0)


def test_many_pairs_score_as_each_alone():
    lm = LanguageModel(case_model())
    pairs = [([1, 5, 2], [7, 3, 9]), ([4], [2]), ([1, 2, 3, 4, 5], [6])]
    for pair, found in zip(pairs, scoring.score_all(lm, pairs), strict=True):
        alone = lm.score(*pair)
        assert found.token_logprobs == pytest.approx(alone.token_logprobs, abs=1e-9)  # float64
        assert found.greedy_ids == alone.greedy_ids


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
def test_a_text_is_read_in_the_windows_that_lm_eval_draws(lm, n):
    """Full windows side by side from the end token; the last one full too, and only what is new in it is scored."""
    text = "".join(chr(97 + i % 23) for i in range(n))
    ids, expected, done = [256, *text.encode()], 0.0, 1
    while done < len(ids):
        end = min(done + 16, len(ids))
        first = max(0, end - 17)  # 16 tokens to read, and the last target
        expected += float(by_hand(lm, ids[first:end], end - done)[0].sum())
        done = end
    assert Answers(lm).loglikelihood_rolling([asked(text), asked("x")])[0] == pytest.approx(expected, abs=1e-9)


def test_a_text_without_begin_and_end_tokens_is_scored_from_its_second_token():
    lm = LanguageModel(case_model())
    assert scoring.rolling(lm, [[1, 5]])[0] == pytest.approx(lm.score([1], [5]).logprob, abs=1e-9)


def test_answers_end_before_their_stop_and_keep_their_order(lm):
    said, other = (done.text for done in lm.generate(["ab", "cde"], max_new_tokens=6, temperature=0.0))
    before, stop = said[:4], said[4]
    assert stop not in before, "the test would pass if nothing were said"
    requests = [
        asked("ab", {"until": [stop], "max_gen_toks": 6}),
        asked("cde", {"max_gen_toks": 6}),
        # 14 of 16 tokens are for the answer, so that two are read
        asked("x" * 30 + "ab", {"until": stop, "max_gen_toks": 14, "do_sample": False, "temperature": 0.7}),
    ]
    assert Answers(lm).generate_until(requests) == [before, other, before]


def test_options_of_a_task_become_options_of_generate_or_are_refused(lm):
    greedy = {"max_new_tokens": 256, "stop": ["a"], "temperature": 0.0}
    assert answer_options({"until": ["a", ""], "do_sample": False, "temperature": 0.9}) == greedy
    drawn = {"max_new_tokens": 5, "stop": [], "temperature": 0.9, "top_p": 0.5}
    assert answer_options({"max_gen_toks": 5, "do_sample": True, "temperature": 0.9, "top_p": 0.5}) == drawn
    with pytest.raises(RequestError, match="num_beams, which onehop does not have"):
        answer_options({"num_beams": 4})
    with pytest.raises(RequestError, match="max_gen_toks=256 leaves this model's context of 16 no room"):
        Answers(lm).generate_until([asked("a", {})])


def test_tasks_without_lm_eval_are_one_line_that_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["eval", "fables-tiny", "--tasks", "arc_easy"]) == 2
    assert capsys.readouterr().err == "onehop: eval --tasks needs the package lm-eval: pip install 'onehop-lm[eval]'\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a.txt", "--tasks", "x"], "(one of them)"),
        (["--tasks", "x", "--by-document"], "--by-document has no effect with --tasks"),
        (["a.txt", "--num-fewshot", "2"], "--num-fewshot needs --tasks"),
    ],
)
def test_texts_and_tasks_exclude_each_other(capsys, words, text):
    assert main(["eval", "fables-tiny", *words]) == 2
    assert text in capsys.readouterr().err


TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
{rest}
"""
KINDS = {
    "multiple_choice": 'doc_to_text: "{{question}}"\ndoc_to_choice: choices\ndoc_to_target: answer\n'
    "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]",
    "loglikelihood_rolling": 'doc_to_text: ""\ndoc_to_target: "{{question}}"\nmetric_list: [{metric: bits_per_byte}]',
    "generate_until": 'doc_to_text: "{{question}}"\ndoc_to_target: "{{said}}"\n'
    'generation_kwargs: {until: ["."], max_gen_toks: 8}\nmetric_list: [{metric: exact_match}]',
}


@pytest.mark.slow  # lm-eval takes half a minute to load
def test_lm_eval_itself_gives_the_numbers_that_follow_from_the_model(tmp_path):
    pytest.importorskip("lm_eval")
    lm = onehop.load("fables-tiny")
    docs = [
        {"question": "Once upon a", "choices": [" time", " xylophone"], "answer": 0},
        {"question": "There once was a lazy fox", "choices": [" the the", " named"], "answer": 0},
        {"question": "The canoe was too", "choices": [" bulky", " zzz", " Tess"], "answer": 0},
    ]
    options = {"max_new_tokens": 8, "temperature": 0.0, "stop": ["."]}
    for doc in docs[:2]:
        doc["said"] = lm.generate([doc["question"]], **options)[0].text
    docs[2]["said"] = "nothing like it"
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, docs)))
    for kind, rest in KINDS.items():
        text = TASK.format(name=f"own_{kind}", data=tmp_path / "data.jsonl", kind=kind, rest=rest)
        (tmp_path / f"{kind}.yaml").write_text(text)
    names = ",".join(f"own_{kind}" for kind in KINDS)
    words = ["eval", "fables-tiny", "--tasks", names, "--include-path", str(tmp_path), "--json"]
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", "onehop", *words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["results"]
    right = [
        max(doc["choices"], key=lambda choice: lm.score(doc["question"], choice).logprob) == doc["choices"][0]
        for doc in docs
    ]
    assert found["own_multiple_choice"]["acc,none"] == pytest.approx(sum(right) / 3)
    assert found["own_generate_until"]["exact_match,none"] == pytest.approx(2 / 3)
    nats = -sum(scoring.rolling(lm, [doc["question"] for doc in docs]))
    n_bytes = sum(len(doc["question"]) for doc in docs)
    assert found["own_loglikelihood_rolling"]["bits_per_byte,none"] == pytest.approx(
        nats / math.log(2) / n_bytes, rel=1e-5
    )
