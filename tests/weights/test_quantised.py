"""Quantised weights mean what the methods' own code makes of them."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from onehop.base.errors import CheckpointError
from onehop.formats import read_config
from onehop.model import build
from onehop.weights import open_model, save_hf
from onehop.weights.quantised import from_float8, from_mxfp4
from tests.golden import write_golden

MXFP4 = {"quant_method": "mxfp4"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [8, 12]}


def random_bytes(*shape, low=0, high=256, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


def test_four_bits_and_a_scale_solved_by_hand():
    """Byte 0x2F: low half 15 = -6, then high half 2 = 1. Scale 128: times 2."""
    codes = torch.tensor([0x2F, 0x71], dtype=torch.uint8).repeat(8).view(1, 1, 16)
    got = from_mxfp4(codes, torch.tensor([[128]], dtype=torch.uint8))
    assert got.flatten().tolist() == [-12.0, 2.0, 1.0, 12.0] * 8


def test_four_bit_numbers_are_those_of_transformers():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    codes = random_bytes(3, 10, 2, 16)
    scales = random_bytes(3, 10, 2, low=1, high=250, seed=1)  # 2^-126 to 2^122: normal numbers
    want = mxfp4.convert_moe_packed_tensors(codes, scales, dtype=torch.bfloat16)
    assert want.isfinite().all()
    assert torch.equal(from_mxfp4(codes, scales), want)


def test_experts_in_four_bits_are_read_as_the_release_has_them(tmp_path):
    """Rows of gate_up_proj are gate and up in turn: the even ones are w1, the odd ones w3."""
    few = {
        "model_type": "gpt_oss", "vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 3,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    save_hf(build(read_config(few)), tmp_path / "a")
    file, at = tmp_path / "a" / "model.safetensors", "model.layers.0.mlp.experts"
    tensors = load_file(file)
    for name, rows, groups in (("gate_up_proj", 128, 1), ("down_proj", 32, 2)):
        shape = tensors.pop(f"{at}.{name}").shape
        tensors[f"{at}.{name}_blocks"] = random_bytes(3, rows, groups, 16, seed=rows)
        tensors[f"{at}.{name}_scales"] = random_bytes(3, rows, groups, low=120, high=128)
        assert shape == (3, 32 * groups, rows)
    save_file(tensors, file, metadata={"format": "pt"})
    say(tmp_path / "a", MXFP4)
    ffn = open_model(tmp_path / "a").model.layers[0].ffn
    fused = from_mxfp4(tensors[f"{at}.gate_up_proj_blocks"], tensors[f"{at}.gate_up_proj_scales"]).float()  # (E, C, 2F)
    assert torch.equal(ffn.w1, fused.mT[:, 0::2])
    assert torch.equal(ffn.w3, fused.mT[:, 1::2])
    down = from_mxfp4(tensors[f"{at}.down_proj_blocks"], tensors[f"{at}.down_proj_scales"]).float()  # (E, F, C)
    assert torch.equal(ffn.w2, down.mT)
    tensors[f"{at}.down_proj_scales"] = tensors[f"{at}.down_proj_scales"][:, :, :1].contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"down_proj_blocks is U8 \[3, 32, 2, 16\] with scales U8 \[3, 32, 1\]"):
        open_model(tmp_path / "a")


def test_each_block_of_float8_has_its_scale():
    codes = torch.ones(3, 5).to(torch.float8_e4m3fn)
    got = from_float8(codes, torch.tensor([[1.0, 2.0], [4.0, 8.0]]), (2, 3))
    assert got.tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 2, 2], [4, 4, 4, 8, 8]]
    codes = codes.expand(2, 3, 5)
    assert torch.equal(from_float8(codes, torch.ones(2, 2, 2), (2, 3)), torch.ones(2, 3, 5))


def quantise(folder, block=(8, 12)):
    """Turn the matrices of a folder's layers into float8 with scales; what they then mean, by name."""
    file, means = folder / "model.safetensors", {}
    tensors = load_file(file)
    for name in [n for n in tensors if "layers" in n and tensors[n].dim() == 2]:
        w = tensors[name].float()
        rows, columns = (math.ceil(n / b) for n, b in zip(w.shape, block))
        scales = 0.01 + torch.rand(rows, columns, generator=torch.Generator().manual_seed(len(means)))
        spread = scales.repeat_interleave(block[0], 0)[: w.size(0)].repeat_interleave(block[1], 1)[:, : w.size(1)]
        tensors[name] = (w / spread).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
        means[name] = tensors[name].float() * spread
    save_file(tensors, file, metadata={"format": "pt"})
    say(folder, FP8)
    return means


def say(folder, quantised):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": quantised}))


def test_a_checkpoint_in_float8_is_read_as_its_numbers_and_written_plainly(tmp_path):
    folder = write_golden(tmp_path / "a")
    means = quantise(folder)
    assert len(means) >= 7
    model = open_model(folder, dtype="float32").model
    save_hf(model, tmp_path / "b")
    written = load_file(tmp_path / "b" / "model.safetensors")
    assert all(torch.equal(written[name], w) for name, w in means.items())
    assert "quantization_config" not in json.loads((tmp_path / "b" / "config.json").read_text())
    again = open_model(tmp_path / "b").model.state_dict()
    assert all(torch.equal(again[name], w) for name, w in model.state_dict().items())


def test_float8_opens_as_bfloat16_where_no_dtype_is_asked_for(tmp_path):
    folder = write_golden(tmp_path)
    quantise(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors = {n: t.bfloat16() if t.dtype == torch.float32 and "scale" not in n else t for n, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert open_model(folder).model.embed.tokens.weight.dtype == torch.bfloat16


def test_float8_without_a_word_in_the_config_or_with_scales_of_another_shape_is_refused(tmp_path):
    folder = write_golden(tmp_path)
    quantise(folder)
    say(folder, None)
    with pytest.raises(CheckpointError, match="_scale_inv"):
        open_model(folder)
    say(folder, {**FP8, "weight_block_size": [4, 12]})
    with pytest.raises(CheckpointError, match=r"needed are F8_E4M3 and a scale for each block of \[4, 12\]"):
        open_model(folder)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({**FP8, "weight_block_size": None}, "weight_block_size=None, which cannot be read: it needs e4m3 and two"),
        ({**FP8, "weight_block_size": [128, 0]}, "as \\[128, 128\\]. Use the unquantised checkpoint"),
        ({**FP8, "fmt": "e5m2"}, "fmt='e5m2'"),
        ({"quant_method": "gptq", "bits": 4}, r"quant_method=gptq\), which cannot be read"),
        ({"quant_method": "bitsandbytes"}, r"quant_method=bitsandbytes\), which cannot be read"),
        ({"quant_method": "compressed-tensors"}, r"quant_method=compressed-tensors\)"),
    ],
)
def test_other_methods_are_refused_by_name(tmp_path, said, text):
    folder = write_golden(tmp_path)
    say(folder, said)
    with pytest.raises(CheckpointError, match=text):
        open_model(folder)
