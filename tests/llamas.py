"""Random small configs that the Llama layout can hold."""

from hypothesis import strategies as st

from onehop.config import ModelConfig
from tests.small_models import DYNAMIC, LLAMA3, LONGROPE, YARN

ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "none"]
SCALINGS = [None, {"kind": "linear", "factor": 2.0}, YARN, LLAMA3, LONGROPE, {**DYNAMIC, "original_max_len": 32}]


@st.composite
def llamas(draw):
    heads = draw(st.integers(1, 6))
    kv = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    scaling = draw(st.sampled_from(SCALINGS))
    eps = draw(st.sampled_from([1e-5, 1e-6]))
    d_head = 4 if scaling and scaling["kind"] == "longrope" else draw(st.sampled_from([4, 6, 10]))
    norm, bias = {"kind": "rms", "eps": eps}, draw(st.booleans())
    position = {"kind": "rope", "theta": draw(st.sampled_from([1e4, 5e5]))} | ({"scaling": scaling} if scaling else {})
    return ModelConfig.model_validate(
        {
            "vocab_size": draw(st.integers(5, 40)), "d_model": heads * draw(st.integers(1, 8)),
            "n_layers": draw(st.integers(1, 3)), "max_len": 64, "norm": norm, "final_norm": norm,
            "attention": {"n_heads": heads, "n_kv_heads": kv, "d_head": d_head, "position": position, "bias": bias,
                          "bias_out": bias},
            "ffn": {"kind": "gated", "d_ff": draw(st.integers(1, 50)), "bias": draw(st.booleans()),
                    "activation": draw(st.sampled_from(ACTIVATIONS))},
            "head": {"tied": draw(st.booleans())}, "init_std": draw(st.sampled_from([0.02, 0.4])),
        }
    )  # fmt: skip
