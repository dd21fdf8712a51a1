"""What the cases of the families do not show of latent attention and of routing with a bias."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError
from onehop.formats import FAMILIES, read_config, write_config
from tests.parity.test_families import near
from tests.parity.theirs import BASE, tokens
from tests.parity.with_experts import CASES, LATENT

V3 = {**BASE, **LATENT, "first_k_dense_replace": 1, "model_type": "deepseek_v3"}
V2 = {**BASE, **LATENT, "model_type": "deepseek_v2"}


@pytest.fixture
def case():
    return CASES["deepseek v3"]


@torch.no_grad()
def test_the_bias_of_the_choice_is_read_and_written(tmp_path, case):
    """Their random models have a bias of zeros; here it decides the groups and the experts."""
    model, x = case.build(), tokens()
    plain = case.logits(model, x, None)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(len(name))))
    want = case.logits(model, x, None)
    assert (want - plain).abs().max() > 0.1  # or the bias would decide nothing
    model.save_pretrained(tmp_path / "theirs")
    lm = onehop.load(tmp_path / "theirs", dtype=case.dtype)
    near(lm.model(x), want)
    lm.save(tmp_path / "ours", format="hf")
    near(case.logits(case.reopen(tmp_path / "ours"), x, None), want, 1e-10)


@torch.no_grad()
def test_layers_that_guess_further_tokens_are_left_out_and_no_others(tmp_path, case):
    """As published: the layer after the last one, with norms and a head of its own."""
    model, x = case.build(), tokens()
    model.save_pretrained(tmp_path)
    want = case.logits(model, x, None)
    file = tmp_path / "model.safetensors"
    plain = load_file(file)
    more = {"enorm.weight": 32, "shared_head.head.weight": 97, "self_attn.o_proj.weight": 3}
    save_file({**plain, **{f"model.layers.3.{name}": torch.ones(n) for name, n in more.items()}}, file)
    near(onehop.load(tmp_path, dtype=case.dtype).model(x), want)
    save_file({**plain, "model.layers.2.enorm.weight": torch.ones(32)}, file)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.enorm\.weight"):
        onehop.load(tmp_path, dtype=case.dtype)


def test_the_cache_keeps_the_latent_and_the_shared_turning_dims(tmp_path, case):
    case.build().save_pretrained(tmp_path)
    model = onehop.load(tmp_path, dtype="float32").model
    for spec in model.cache_specs():
        assert dict(spec.entries) == {"latent": (12,), "turning": (4,)}
    assert model.new_cache(2, kind="fixed", capacity=10).nbytes == 3 * 2 * 10 * (12 + 4) * 4


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
@pytest.mark.parametrize("name", ["deepseek v3", "deepseek v2, biases, odd widths, tied, another eps"])
def test_every_kernel_takes_values_of_another_width_than_keys(tmp_path, kernel, name):
    CASES[name].build().save_pretrained(tmp_path)
    model, x = onehop.load(tmp_path, dtype="float64").model, tokens()
    # The same sums in float64 in another order, of numbers of order 10
    torch.testing.assert_close(model(x, kernel=kernel), model(x, kernel="plain"), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            {**V3, "num_key_value_heads": 2},
            "num_key_value_heads=2 cannot be honoured: each of the 4 heads makes its own",
        ),
        ({**V3, "rope_interleave": False}, "rope_interleave=False cannot be honoured"),
        ({**V3, "scoring_func": "softmax"}, "scoring_func='softmax' cannot be honoured"),
        ({**V3, "moe_layer_freq": 2}, "moe_layer_freq=2 cannot be honoured"),
        ({**V3, "n_shared_experts": 0}, "n_shared_experts=0 should be a whole number from 1 on"),
        ({**V3, "n_group": 5, "topk_group": 2, "n_routed_experts": 12}, "n_groups=5 must divide n_experts=12"),
        ({**V2, "norm_topk_prob": True}, "norm_topk_prob=True cannot be honoured"),
        ({**V2, "topk_method": "noaux_tc"}, "topk_method='noaux_tc' is not known. Known: greedy, group_limited_greedy"),
        ({**V2, "topk_method": "group_limited_greedy"}, "needs n_group and topk_group"),
        ({**V2, "mlp_bias": True}, "mlp_bias=True cannot be honoured"),
    ],
)
def test_what_cannot_be_honoured_is_refused(raw, text):
    with pytest.raises(CheckpointError, match=text):
        read_config(raw)


def test_a_published_file_is_read_and_what_it_says_is_written_back():
    """DeepSeek-V3's own config.json."""
    scaling = {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    }  # fmt: skip
    raw = {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
        "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
        "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
        "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": scaling,
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
    }  # fmt: skip
    config = read_config(raw)
    a, ffn = config.blocks[-1].attention, config.blocks[-1].ffn
    assert a.scale == pytest.approx(192**-0.5 * (0.1 * torch.tensor(40.0).log().item() + 1) ** 2)
    assert (a.d_head, a.position.width, a.d_latent, a.d_latent_q, a.d_value) == (192, 64, 512, 1536, 128)
    assert (ffn.n_groups, ffn.n_active_groups, ffn.group_score, ffn.balance) == (8, 4, "best two", "bias")
    assert [block.ffn.kind for block in config.layers()] == ["gated"] * 3 + ["moe"] * 58
    written = write_config(config)
    assert read_config(json.loads(json.dumps(written))) == config
    same = set(raw) & set(written) - {"rope_scaling"}
    assert {key: written[key] for key in same} == {key: raw[key] for key in same}
    assert FAMILIES.get("deepseek_v3").name == written["model_type"]
