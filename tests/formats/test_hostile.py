"""Whatever stands in a config.json, the answer is a config or one line, never a traceback."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from onehop.base.errors import OnehopError
from onehop.formats import read_config, write_config
from tests.golden import CONFIG

WHOLE = {
    **CONFIG, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
    "rope_parameters": None, "partial_rotary_factor": None, "pruned_heads": {}, "quantization_config": None,
    "pretraining_tp": 1, "eos_token_id": 2,
}  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([0, -1, 2**63, 1e308, "yarn", "longrope", "dynamic", "llama3", "linear"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "rope_type", "factor", "rope_theta", "mscale", "short_factor", "beta_fast", "truncate",
                         "original_max_position_embeddings", "quant_method"]) | st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*WHOLE, "something_new"]), JUNK, min_size=1, max_size=3))
def test_a_config_is_read_or_refused_in_one_line(changes):
    refused = ""
    try:
        config = read_config({**WHOLE, **changes})
        assert config.n_layers > 1000 or json.dumps(write_config(config))  # writing looks at each layer
    except OnehopError as error:
        refused = str(error)
    assert "\n" not in refused
    assert len(refused) < 700
