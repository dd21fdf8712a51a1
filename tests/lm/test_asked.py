"""What a checkpoint asks of generation is done as transformers does it, or said, and never left out in silence."""

import json
import warnings

import pytest
import torch

import onehop
from onehop.base.errors import RequestError
from onehop.cli.main import main
from onehop.generate.request import Limits, Request
from onehop.generate.sample import Sampler
from onehop.lm import LanguageModel
from onehop.lm.asked import NO_MATTER, NOT_DONE, READ, not_done, notice
from onehop.lm.options import NAMES
from tests.golden import write_golden
from tests.parity.encoders import CASES
from tests.parity.theirs import tokens, transformers
from tests.small_models import decoder, encoder_decoder, small_model
from tests.text.small_tokenizers import bytes_only


def test_every_setting_of_theirs_is_read_or_does_not_matter_or_is_said():
    theirs = set(transformers.GenerationConfig().to_dict())
    assert theirs <= {*NAMES, *READ, *NO_MATTER, *NOT_DONE}
    assert not NO_MATTER & {*NAMES, *READ, *NOT_DONE}


def asked(file, *, has_source=True):
    return not_done(file, options=NAMES, has_source=has_source, max_len=64)


def test_what_is_not_done_is_named_with_its_value_and_its_meaning():
    file = {
        "num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "top_p": 0.9, "do_sample": True,
        "transformers_version": "5", "chat_format": "x", "penalty_alpha": 0.6, "max_length": 64, "min_length": 0,
        "typical_p": 1.0, "guidance_scale": None, "eos_token_id": 2,
    }  # fmt: skip
    found = asked(file)
    assert found == {
        "num_beams": (4, "beam search"), "no_repeat_ngram_size": (3, "no run of so many tokens twice"),
        "chat_format": ("x", "unknown here"), "penalty_alpha": (0.6, "contrastive search"),
    }  # fmt: skip
    line = notice(found)
    assert "\n" not in line
    assert "num_beams=4 (beam search), no_repeat_ngram_size=3 (no run of so many tokens twice)" in line
    assert notice(asked({"num_beams": 1, "max_length": 4096})) is None
    assert asked({"max_length": 63}) == {"max_length": (63, NOT_DONE["max_length"][1])}
    assert asked({"forced_bos_token_id": 3}) == {}
    assert set(asked({"forced_bos_token_id": 3}, has_source=False)) == {"forced_bos_token_id"}


def settings(folder, **values):
    file = folder / "generation_config.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**before, **values}))


def test_it_is_said_once_at_load_by_the_report_or_as_a_warning(tmp_path, capsys):
    bytes_only().save(write_golden(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onehop.load(tmp_path)
    settings(tmp_path, num_beams=5)
    with pytest.warns(UserWarning, match=r"num_beams=5 \(beam search\)") as caught:
        onehop.load(tmp_path)
    assert caught[0].filename == __file__
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onehop.load(tmp_path, report=said.append)
    assert [line for line in said if "num_beams" in line] == said[-1:]
    settings(tmp_path, suppress_tokens=[3])
    # The settings are told before the empty prompt is refused: no token begins a text of this model.
    assert main(["generate", str(tmp_path), "", "--max-new-tokens", "2", "--verbose"]) == 2
    told = capsys.readouterr().err
    assert "note: generation_config.json asks for" in told
    rows = {line.split()[0]: line for line in told.splitlines() if line.split()}
    assert rows["num_beams"].split()[1:4] == ["5", "generation_config.json:", "not"]
    assert rows["never"].split()[1] == "[3]"


@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_an_answer_begins_with_the_language_that_the_checkpoint_fixes(tmp_path, place):
    """mBART's forced_bos_token_id, and begin_suppress_tokens behind it, as transformers has them."""
    model, x = CASES["mbart, scaled"].build(), tokens()[:2, :9]
    greedy = {"do_sample": False, "eos_token_id": None, "forced_eos_token_id": None, "max_new_tokens": 12}
    free = model.generate(x, **greedy, forced_bos_token_id=None)[:, 1:].tolist()
    second = model.generate(x, **greedy, forced_bos_token_id=7)[0, 2].item()
    fixed = {"forced_bos_token_id": 7, "begin_suppress_tokens": [second], "suppress_tokens": [free[0][3]]}
    want = model.generate(x, **greedy, **fixed)[:, 1:].tolist()
    assert free[0][0] != 7 == want[0][0]
    model.save_pretrained(tmp_path)
    if place == "config.json":
        (tmp_path / "generation_config.json").unlink()
    file = tmp_path / place
    file.write_text(json.dumps({**json.loads(file.read_text()), **fixed}))
    lm = onehop.load(tmp_path, dtype="float64", report=lambda line: None)
    got = lm.generate(x.tolist(), max_new_tokens=12, temperature=0.0, ignore_eos=True)
    assert [list(answer.token_ids) for answer in got] == want
    drawn = lm.generate(x.tolist(), max_new_tokens=3, temperature=2.0, seed=1, repetition_penalty=1.3, ignore_eos=True)
    assert {answer.token_ids[0] for answer in drawn} == {7}
    lm.save(tmp_path / "again", format="hf")
    again = onehop.load(tmp_path / "again", report=lambda line: None).limits
    assert (again.first, again.never_first, again.never) == (7, {second}, {free[0][3]})


def test_some_ids_do_not_begin_an_answer_but_may_go_on_with_it():
    limits = Limits(n_ids=3, max_len=9, never_first=frozenset({2}))
    sampler, logits = Sampler([Request((0,), temperature=0.0)], limits), torch.tensor([[0.0, 1.0, 2.0]])
    assert [sampler(logits).item() for _ in range(3)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ({"forced_bos_token_id": 10**6}, r"forced_bos_token_id=1000000 should be a token id below"),
        ({"forced_bos_token_id": "fr"}, r"forced_bos_token_id='fr' should be a token id below"),
        ({"begin_suppress_tokens": [1, -2]}, r"begin_suppress_tokens=\[1, -2\] should be a list of token ids"),
    ],
)
def test_what_names_no_token_is_refused(file, text):
    lm = LanguageModel(small_model(encoder_decoder()), start_id=0, generation_config=file)
    with pytest.raises(RequestError, match=text):
        lm.generate([[1, 2]])


def test_a_decoder_s_first_token_is_not_forced():
    lm = LanguageModel(small_model(decoder()), generation_config={"forced_bos_token_id": 3})
    assert lm.limits.first is None
    assert set(lm.not_done) == {"forced_bos_token_id"}


@pytest.mark.parametrize("n", [1, 4])
def test_an_answer_that_is_cut_off_ends_with_the_token_that_the_checkpoint_fixes(tmp_path, n):
    """forced_eos_token_id, as in every BART; the end was not the model's choice, so the reason is the length."""
    model, x = CASES["bart"].build(), tokens()[:2, :9]
    model.generation_config.forced_eos_token_id = 2
    model.save_pretrained(tmp_path)
    want = model.generate(x, do_sample=False, max_new_tokens=n)[:, 1:].tolist()
    lm = onehop.load(tmp_path, dtype="float64")
    got = lm.generate(x.tolist(), max_new_tokens=n, temperature=0.0)
    assert [list(answer.token_ids) for answer in got] == want
    assert {row[-1] for row in want} == {2}
    assert {answer.finish_reason for answer in got} == {"length"}
    on = lm.generate(x.tolist(), max_new_tokens=n, temperature=0.0, ignore_eos=True)
    assert 2 not in {answer.token_ids[-1] for answer in on}


@pytest.mark.parametrize("key", ["suppress_tokens", "begin_suppress_tokens"])
def test_settings_that_leave_no_token_to_say_are_refused(key):
    lm = LanguageModel(small_model(decoder()), generation_config={key: list(range(13))})
    with pytest.raises(RequestError, match=r"^the checkpoint's settings keep every token out of an answer"):
        lm.generate([[1, 2]])
    lm.generation_config[key].pop()
    assert lm.generate([[1, 2]], max_new_tokens=1)[0].token_ids == [12]
