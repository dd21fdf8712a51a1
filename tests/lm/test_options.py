"""Which value of an option counts, and where it comes from."""

import pytest

from onehop.base.errors import RequestError
from onehop.lm.options import resolve

FILE = {"temperature": 0.6, "top_p": 0.9, "top_k": 50, "do_sample": True, "eos_token_id": 2, "max_length": 4096}


def test_an_argument_counts_before_the_checkpoint_and_the_checkpoint_before_the_default():
    found = resolve({"temperature": 0.1, "top_p": None}, FILE)
    assert found["temperature"] == (0.1, "argument")
    assert found["top_p"] == (0.9, "generation_config.json")
    assert found["top_k"] == (50, "generation_config.json")
    assert found["min_p"] == (0.0, "default")
    assert "max_length" not in found


def test_where_nobody_says_anything_the_temperature_is_moderate_and_all_else_is_off():
    found = {name: value for name, (value, origin) in resolve({}, {}).items() if origin == "default"}
    assert found == {
        "max_new_tokens": 256, "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": (), "seed": None, "logprobs": None,
        "ignore_eos": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "temperature"),
    [
        ({"do_sample": False}, (0.0, "generation_config.json (do_sample)")),
        ({"do_sample": False, "temperature": 0.6}, (0.0, "generation_config.json (do_sample)")),
        ({"do_sample": True}, (1.0, "generation_config.json (do_sample)")),
        ({"do_sample": True, "temperature": 0.6}, (0.6, "generation_config.json")),
        ({"temperature": 0.6}, (0.6, "generation_config.json")),
        ({"temperature": None}, (0.8, "default")),
    ],
)
def test_a_checkpoint_that_samples_or_does_not_is_heeded(file, temperature):
    assert resolve({}, file)["temperature"] == temperature
    assert resolve({"temperature": 0.3}, file)["temperature"] == (0.3, "argument")


def test_an_unknown_option_is_answered_with_the_nearest():
    with pytest.raises(
        RequestError, match=r"^'temprature' is not an option of generation\. Did you mean temperature\?$"
    ):
        resolve({"temprature": 1.0}, {})


def test_what_the_checkpoint_says_and_cannot_be_is_refused_by_its_file_unless_something_else_is_given():
    with pytest.raises(RequestError) as told:
        resolve({"temperature": 0.5}, {"temperature": "hot", "top_p": 7})
    need = "must be above 0 and at most 1 (1 is off). Give another top_p, or mend that file."
    assert str(told.value) == f"generation_config.json: top_p=7 {need}"
    assert resolve({"top_p": 0.9}, {"top_p": 7})["top_p"] == (0.9, "argument")
    assert resolve({}, {"temperature": "hot", "do_sample": False})["temperature"][0] == 0.0
