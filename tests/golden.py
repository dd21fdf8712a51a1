"""A decoder of 4,336 parameters, described by a stream of integers: a folder in the Hugging Face layout, or built here.

Its logits were computed elsewhere, in float64 and in two independent ways: a model whose answers are known.
"""

import json
import math

import torch
from safetensors.torch import save_file

from onehop.config import ModelConfig
from onehop.model import build
from onehop.weights import load_hf

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 13,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LAYER = [
    ("input_layernorm", (16,)),
    ("self_attn.q_proj", (16, 16)),
    ("self_attn.k_proj", (8, 16)),
    ("self_attn.v_proj", (8, 16)),
    ("self_attn.o_proj", (16, 16)),
    ("post_attention_layernorm", (16,)),
    ("mlp.gate_proj", (24, 16)),
    ("mlp.up_proj", (24, 16)),
    ("mlp.down_proj", (16, 24)),
]
OURS = ["attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo",
        "ffn_norm", "ffn.w1", "ffn.w3", "ffn.w2"]  # fmt: skip
ORDER = [
    ("model.embed_tokens", (13, 16)),
    *[(f"model.layers.{i}.{name}", shape) for i in range(2) for name, shape in LAYER],
    ("model.norm", (16,)),
    ("lm_head", (13, 16)),
]
SUM_OF_TIED = 95.40081488192081  # of all weights but lm_head

IDS = [1, 5, 2]
TIED_LOGITS = [
    [-1.1027986395, 5.5375635179, -1.0783609693, 3.6905787404, -4.0836160966, -1.6476712014, 0.45431803408,
     5.0786882172, 4.5311663549, 8.1385068906, 4.1633222614, 3.3785616609, 2.2965800601],
    [0.22802657911, 2.3181713034, 1.7199874017, 2.5140717284, -1.0495039532, 5.0634424199, 5.2428567621,
     2.7144708201, 3.1875950193, 5.3211770965, -0.053995209805, -0.044503099728, 7.0676177695],
    [2.5079404085, 2.2923257903, -0.89792214921, 3.4527892172, -3.5031843713, 1.3411415828, 2.4598614156,
     3.5650391386, 5.530847479, 5.773660846, 4.3855027394, 0.93079093283, 3.9782055389],
]  # fmt: skip
UNTIED_LOGITS = [
    [-4.9436784237, -1.9222535835, -1.6318587734, -1.6474262815, 0.95395338863, 1.2470577931, 2.2708360286,
     -0.74737212674, 1.3772545307, -1.5655475704, -0.16414262777, -2.1364685801, -1.9084765587],
    [-2.4949302499, 3.4937527243, 0.80629910178, -2.5697742982, -4.8755024598, 0.11840373783, 3.7664591179,
     -1.788897752, 2.571292928, -4.1272946288, -0.088280263963, -2.6409424156, -2.7868740562],
    [-3.3376758326, -1.8549058831, -0.5162298981, 0.47427153102, 0.17921786485, 1.4300345492, 2.7787529849,
     -2.524253764, 1.3182868128, 0.82565792868, -1.1625982597, 0.82098010492, 1.1594851472],
]  # fmt: skip


def stream(seed=12345):
    """Values in [-0.5, 0.5): the linear congruential generator of ANSI C."""
    while True:
        seed = (1103515245 * seed + 12345) % 2**31
        yield seed / 2**31 - 0.5


def golden_tensors(tied=False):
    """{their name: float64 tensor}, filled row by row from one stream; tied leaves lm_head out."""
    values, tensors = stream(), {}
    for name, shape in ORDER[:-1] if tied else ORDER:
        drawn = torch.tensor([next(values) for _ in range(math.prod(shape))], dtype=torch.float64)
        if "norm" in name:
            drawn = 1 + 0.4 * drawn
        elif "layers" not in name:
            drawn = 2 * drawn
        tensors[f"{name}.weight"] = drawn.view(shape)
    return tensors


def write_golden(folder, tied=False, tensors=None, **keys):
    """The model's folder; `tensors` replaces the weights, `keys` are laid over config.json (None takes one out)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "tie_word_embeddings": tied, **keys}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    save_file(golden_tensors(tied) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def golden_model(folder, tied=False, dtype=torch.float64):
    """The model itself, by way of a folder."""
    return load_hf(write_golden(folder, tied), dtype=dtype)


def case_config(**own):
    """13 tokens, 16 wide, 2 layers, 4 heads sharing 2 kv heads, SwiGLU of 24, RoPE."""
    norm = {"kind": "rms", "eps": 1e-5}
    return ModelConfig.model_validate(
        {
            "vocab_size": 13, "d_model": 16, "n_layers": 2, "max_len": 64,
            "attention": {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope", "theta": 10000.0}},
            "ffn": {"kind": "gated", "d_ff": 24, "activation": "silu"},
            "norm": norm, "final_norm": norm, "head": {"tied": False}, **own,
        }
    )  # fmt: skip


def case_model(dtype=torch.float64):
    """The model itself, without any file or format: our names for the same tensors in the same order."""
    model = build(case_config(), dtype=dtype)
    names = [
        "embed.tokens",
        *(f"layers.{i}.{name}" for i in range(2) for name in OURS),
        "final_norm",
        "head.projection",
    ]
    model.load_state_dict(dict(zip([f"{name}.weight" for name in names], golden_tensors().values(), strict=True)))
    return model


def golden_logits(tied=False):
    """(1, T, V) in float64, for IDS."""
    return torch.tensor(TIED_LOGITS if tied else UNTIED_LOGITS, dtype=torch.float64)[None]
