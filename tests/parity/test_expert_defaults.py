"""What families with experts take for keys that a file leaves out is what transformers' classes take."""

import pytest

from onehop.formats import read_config
from tests.parity.theirs import transformers

FEW = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 16}
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_v3": {"num_key_value_heads": 16},  # else 128, whatever the number of heads
    "gpt_oss": {"intermediate_size": 48},
    "mixtral": {"intermediate_size": 48},
    "olmoe": {"intermediate_size": 48},
    "qwen2_moe": {},
    "qwen3_moe": {},
}


@pytest.mark.parametrize("model_type", NEEDED)
@pytest.mark.parametrize("own", [{}, {"num_key_value_heads": 16}], ids=["few keys", "and kv heads"])
def test_an_absent_key_means_what_it_means_there(model_type, own):
    few = {**FEW, **NEEDED[model_type], **own}
    whole = transformers.AutoConfig.for_model(model_type, **few).to_dict()
    assert len(whole) > 2 * len(few)
    assert read_config({"model_type": model_type, **few}) == read_config(whole)
