"""Of a model that also sees, the text model is read: with its numbers, under either spelling of its tensors' names."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import onehop
from onehop.base.errors import CheckpointError
from onehop.formats import read_config
from tests.parity.test_families import near
from tests.parity.theirs import BASE, tokens, transformers

VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 2]}
EYES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 14}
QWEN = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
WHOLES = {
    "qwen2_vl": {
        "text_config": {**BASE, "rope_parameters": ROPE},
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}, **QWEN,
    },
    "qwen2_5_vl": {
        "text_config": {**BASE, "rope_parameters": ROPE}, "vision_config": {**EYES, "out_hidden_size": 32}, **QWEN,
    },
    "qwen3_vl": {
        "text_config": {**BASE, "head_dim": 8, "rope_parameters": ROPE},
        "vision_config": {**EYES, "out_hidden_size": 32, "deepstack_visual_indexes": [0]}, **QWEN,
    },
    "gemma3": {
        "text_config": {**BASE, "head_dim": 16, "sliding_window": 7, "sliding_window_pattern": 2},
        "vision_config": VISION, "mm_tokens_per_image": 1, "image_token_index": 90, "boi_token_index": 91,
        "eoi_token_index": 92,
    },
    "mistral3": {
        "text_config": {**BASE, "model_type": "mistral", "head_dim": 16, "sliding_window": 7},
        "vision_config": {**VISION, "model_type": "pixtral"}, "image_token_index": 90, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.fixture(params=WHOLES)
def whole(request):
    """A random model with eyes, in float64, its weights spread widely."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, **WHOLES[request.param])
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_config(config, dtype=torch.float64, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            scale = 0.2 if p.dim() < 2 else 0.35 / math.sqrt(max(1, p.shape[-1] / 16))
            p.add_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    model.tie_weights()
    return model


@torch.no_grad()
def test_the_text_model_inside_gives_the_same_logits_and_is_saved_alone(tmp_path, whole):
    x = tokens()
    want = whole(x).logits
    whole.save_pretrained(tmp_path / "theirs")
    said = []
    lm = onehop.load(tmp_path / "theirs", dtype=torch.float64, report=said.append)
    near(lm.model(x), want)
    n = sum("vis" in name or "projector" in name for name in load_file(tmp_path / "theirs" / "model.safetensors"))
    assert said[1:] == [f"{n} tensors left out: the part that sees images: only the text model is read"]
    lm.save(tmp_path / "ours", format="hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    near(theirs(x).logits, want)
    assert onehop.load(tmp_path / "ours", dtype=torch.float64).config == lm.config


@torch.no_grad()
def test_names_as_in_memory_are_read_too(tmp_path, whole):
    whole.save_pretrained(tmp_path)
    before = onehop.load(tmp_path).model(tokens())
    file = tmp_path / "model.safetensors"
    weights = {k: v for k, v in whole.state_dict().items() if k in dict(whole.named_parameters())}
    as_saved = load_file(file).keys()
    assert (as_saved == weights.keys()) == (whole.config.model_type == "qwen3_vl")  # its files have the names of memory
    save_file({k: v.contiguous() for k, v in weights.items()}, file)
    assert torch.equal(onehop.load(tmp_path).model(tokens()), before)


def test_an_unknown_tensor_of_the_text_model_is_refused(tmp_path, whole):
    whole.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "language_model.model.layers.0.extra": torch.ones(1)}, file)
    with pytest.raises(CheckpointError, match=r"unexpected language_model\.model\.layers\.0\.extra"):
        onehop.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"text_config": None}, "text_config should hold the keys of a Hugging Face Gemma 3"),
        ({"text_config": {"model_type": "llama"}}, "text_config should hold the keys of a Hugging Face Gemma 3"),
        ({"audio_config": {"d": 1}}, "audio_config=.* is unknown in a Hugging Face Gemma 3 with images"),
    ],
)
def test_what_the_larger_config_says_is_checked_too(change, text):
    config = transformers.AutoConfig.for_model("gemma3", **WHOLES["gemma3"])
    raw = json.loads(config.to_json_string(use_diff=False))
    assert read_config(raw).d_model == 32
    with pytest.raises(CheckpointError, match=text):
        read_config({**raw, **change})


def test_whether_the_head_is_the_embedding_is_said_by_the_larger_config():
    config = transformers.AutoConfig.for_model("gemma3", **WHOLES["gemma3"])
    raw = json.loads(config.to_json_string(use_diff=False))
    assert raw["text_config"]["tie_word_embeddings"]
    assert not read_config({**raw, "tie_word_embeddings": False}).head.tied
    assert read_config({**raw, "tie_word_embeddings": None}).head.tied


def test_older_files_of_qwen_hold_the_text_models_keys_beside_the_others():
    config = transformers.AutoConfig.for_model("qwen2_vl", **WHOLES["qwen2_vl"])
    raw = json.loads(config.to_json_string(use_diff=False))
    text = {key: value for key, value in raw["text_config"].items() if key not in ("rope_parameters", "model_type")}
    flat = {**text, **{key: value for key, value in raw.items() if key != "text_config"}}
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    assert read_config({**flat, **old}) == read_config(raw)
    with pytest.raises(CheckpointError, match=r"rotary scaling .*yarn.* beside M-RoPE is not known"):
        read_config({**flat, "rope_scaling": {"type": "yarn", "factor": 2.0}})
