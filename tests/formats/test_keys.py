"""Every key of a config.json is read, written back, refused, or harmless for a reason."""

import pytest

from onehop.base.errors import CheckpointError
from onehop.formats.keys import COMMON_ROWS, Harmless, Key, Only, nested, read_keys, value_at, write_keys
from tests.small_models import decoder

TABLE = (
    Key("hidden_size", "d_model"),
    Key("n_head", "attention.n_heads", default=None),
    Key("bias", ("attention.bias", "ffn.bias"), default=False),
    Key("act", "ffn.activation", default="silu", words={"swish": "silu", "silu": "silu", "gelu_new": "gelu_tanh"}),
    Only("scale_attn", (True,), "scores would not be scaled"),
    Harmless("use_cache note", "how it is run"),
)


def read(raw):
    return read_keys(TABLE, raw, title="Test")


def test_each_key_goes_to_its_places_and_absent_ones_get_their_codes_default():
    assert read({"hidden_size": 8}) == {
        "d_model": 8, "attention.bias": False, "ffn.bias": False, "ffn.activation": "silu",
    }  # fmt: skip
    assert read({"hidden_size": 8, "n_head": 2, "bias": True, "act": "gelu_new"}) == {
        "d_model": 8, "attention.n_heads": 2, "attention.bias": True, "ffn.bias": True, "ffn.activation": "gelu_tanh",
    }  # fmt: skip


def test_null_is_the_same_as_absent():
    assert read({"hidden_size": 8, "n_head": None, "bias": None, "anything": None}) == read({"hidden_size": 8})


def test_the_first_word_of_several_is_written():
    config = decoder(ffn={"kind": "gated", "d_ff": 8, "activation": "silu"})
    assert write_keys(TABLE, config) == {"hidden_size": 16, "n_head": 4, "bias": False, "act": "swish"}


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"hidden_sizes": 9}, r"hidden_sizes=9 is unknown in a Test and could .*Did you mean hidden_size\?"),
        ({"logits_fudge": 0.5}, r"logits_fudge=0\.5 is unknown in a Test .* If it is known to do nothing, remove it"),
        ({"hidden_size": None}, "config.json has no hidden_size, which this layout needs"),
        ({"act": "quick_gelu"}, r"act='quick_gelu' is not known\. Known: gelu_new, silu, swish"),
        ({"scale_attn": False}, r"scale_attn=False cannot be honoured: scores would not be scaled\. Needed: True"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(quant_method=awq\), which cannot be read"),
        ({"quantization_config": {"load_in_4bit": True}}, r"quantised \(quant_method=unnamed\)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "is no language model"),
        ({"architectures": "LlamaForCausalLM"}, "is no language model"),
        ({"add_cross_attention": True}, "add_cross_attention=True cannot be honoured"),
        ({"pruned_heads": {"0": [1]}}, "heads were cut out"),
    ],
)  # fmt: skip
def test_what_could_change_the_numbers_is_refused_by_name(own, text):
    with pytest.raises(CheckpointError, match=text):
        read({"hidden_size": 8, **own})


def test_what_cannot_change_a_logit_is_passed_over():
    raw = {
        "use_cache": True, "note": "x", "torch_dtype": "float16", "bos_token_id": 1, "transformers_version": "4.30.0",
        "architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "evil.py"}, "pruned_heads": {},
    }  # fmt: skip
    assert read({"hidden_size": 8, **raw}) == read({"hidden_size": 8})


def test_every_harmless_key_has_a_reason_and_one_row():
    names = [name for row in COMMON_ROWS for name in row.names]
    assert len(names) == len(set(names))
    assert all(row.reason for row in COMMON_ROWS if isinstance(row, Harmless))


def test_a_path_is_a_place_in_a_nested_table_and_in_a_config():
    assert nested({"a.b.c": 1, "a.b.d": 2, "e": 3}) == {"a": {"b": {"c": 1, "d": 2}}, "e": 3}
    config = decoder()
    assert value_at(config, "attention.position.theta") == 10000.0
    assert value_at(config, "d_model") == 16
    assert value_at(config, "ffn.n_experts") is None
