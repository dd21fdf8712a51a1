"""Adapters in the hands of PEFT itself: it reads ours, we read its, and both compute the same."""

import pytest
import torch

import onehop
from onehop.parts.lora import adapt
from onehop.weights.adapter import save_adapter
from tests.parts.test_lora import some

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
GATED = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, **IDS,
}  # fmt: skip
# Every map by itself; q, k and v in one; stored (d_in, d_out), and q, k and v in one
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GATED)),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**GATED)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, **IDS)
    ),
}
SETTINGS = [{}, {"use_rslora": True}, {"alpha_pattern": {"down_proj": 3}, "rank_pattern": {"o_proj": 7}}]
TOKENS = torch.arange(3, 30)[None]


@pytest.fixture(params=MODELS)
def base(request, tmp_path):
    torch.manual_seed(0)
    MODELS[request.param]().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def theirs(base):
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


@torch.no_grad()
def test_peft_reads_what_is_saved_here(base, tmp_path):
    lm = onehop.load(base)
    adapt(lm.model, some(lm.model, spread=0.1))
    save_adapter(lm.model, tmp_path / "ours", base=str(base), family=lm.family)
    read = peft.PeftModel.from_pretrained(theirs(base), tmp_path / "ours").eval()
    # float32, logits of order 1
    torch.testing.assert_close(read(TOKENS).logits, lm.model(TOKENS), rtol=0, atol=1e-5)
    assert not torch.allclose(lm.model(TOKENS), onehop.load(base).model(TOKENS), atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "by the root of the rank", "patterns"])
def test_what_peft_saves_is_read_here(base, tmp_path, settings):
    config = {"r": 5, "lora_alpha": 12, "target_modules": "all-linear", "init_lora_weights": False}
    made = peft.get_peft_model(theirs(base), peft.LoraConfig(**config, **settings, task_type="CAUSAL_LM")).eval()
    made.save_pretrained(tmp_path / "theirs")
    lm = onehop.load(base, adapter=tmp_path / "theirs")
    # float32 of logits that such adapters take to 10
    torch.testing.assert_close(lm.model(TOKENS), made(TOKENS).logits, rtol=1e-5, atol=5e-5)
