"""Where transformers itself fails, nothing is known about this library: the row says so and fails nothing."""

import pytest
import torch

from onehop.lm import check_theirs, load
from onehop.lm.probe import Probe
from onehop.lm.verify import verify
from tests.golden import write_golden
from tests.parity.theirs import transformers as library
from tests.text.small_tokenizers import bytes_only

MODEL, TOKENIZER = "transformers, layer by layer, in float32", "tokenizer = transformers"


def broken(*_, **__):
    raise TypeError("a fault of theirs\nin two lines")


def rows(folder):
    return {check.name: check for check in verify(load(folder, dtype="float32"))}


@pytest.fixture
def folder(tmp_path):
    bytes_only().save(write_golden(tmp_path))
    return tmp_path


def test_a_model_that_their_code_cannot_open_is_not_compared(folder, monkeypatch):
    monkeypatch.setattr(library.LlamaForCausalLM, "from_pretrained", broken)
    row = rows(folder)[MODEL]
    assert row.passed is None
    assert row.note == ("could not be compared: transformers, opening the folder, ends in TypeError: a fault of theirs")


def test_a_model_that_their_code_cannot_run_is_not_compared(folder, monkeypatch):
    monkeypatch.setattr(library.models.llama.modeling_llama.LlamaAttention, "forward", broken)
    row = rows(folder)[MODEL]
    assert row.passed is None
    assert row.note == "could not be compared: transformers, reading the text, ends in TypeError: a fault of theirs"


def test_a_tokenizer_that_their_code_cannot_open_or_use_is_not_compared(folder, monkeypatch):
    for name, doing in (("__call__", 'encoding "Hello'), ("from_pretrained", "opening the tokenizer")):
        monkeypatch.setattr(library.PreTrainedTokenizerFast, name, broken)
        row = rows(folder)[TOKENIZER]
        assert row.passed is None
        assert row.note.startswith(f"could not be compared: transformers, {doing}")


def test_an_error_of_our_own_on_the_way_is_no_fault_of_theirs(folder, monkeypatch):
    monkeypatch.setattr(check_theirs, "distance", broken)
    with pytest.raises(TypeError, match="a fault of theirs"), torch.no_grad():
        check_theirs.transformers(Probe(load(folder, dtype="float32")))
