"""A model that was trained here, in the hands of `transformers`: the same logits, the same ids."""

import pytest
import torch

import onehop
from onehop.base.errors import CheckpointError
from tests.training.small_runs import recipe

transformers = pytest.importorskip("transformers")

NORM = {"kind": "rms", "eps": 1e-5}
MODELS = {
    "rotary, gated, grouped": {"norm": NORM, "final_norm": NORM, "attention": {"n_heads": 4, "n_kv_heads": 2}},
    "learned positions, biases": {
        "norm": {"kind": "layer", "eps": 1e-5},
        "final_norm": {"kind": "layer", "eps": 1e-5},
        "embed": {"position": "learned"},
        "attention": {"n_heads": 4, "bias": True, "bias_out": True, "position": "none"},
        "ffn": {"kind": "plain", "d_ff": 24, "activation": "gelu_tanh", "bias": True},
    },
    "experts": {
        "norm": NORM,
        "final_norm": NORM,
        "ffn": {"kind": "moe", "d_ff": 8, "n_experts": 4, "n_active": 2, "balance_weight": 0.02},
        "head": {"tied": False},
    },
}
TEXTS = ["a fox sees a nut.", "", " the  hen\n\thides", "Größe 中文 👩🏽‍🚀 <|eos|>", "one crow eats 12345 nuts"]


@pytest.mark.parametrize("kind", MODELS)
def test_transformers_opens_a_trained_model_with_the_same_logits_and_the_same_ids(tmp_path, kind):
    run = onehop.train(recipe(tmp_path, model=MODELS[kind], optimizer="muon"))
    lm = onehop.load(run.out)
    lm.save(tmp_path / "hf", format="hf")

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokens = torch.arange(2 * 20).reshape(2, 20) * 7 % lm.tokenizer.vocab_size
    with torch.no_grad():
        ours = lm.model(tokens)
        # float32, and sums in another order: logits here are of order 1
        torch.testing.assert_close(theirs(tokens).logits, ours, rtol=0, atol=2e-5)
        assert float(ours.std()) > 0.1  # a model that says something

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        # What a text spells is text here; transformers is told so by split_special_tokens
        assert tokenizer(text, split_special_tokens=True)["input_ids"] == lm.encode(text)
        ids = lm.encode(text)[1:]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == lm.tokenizer.decode(ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (lm.tokenizer.bos_id, lm.tokenizer.eos_id)
    assert theirs.generation_config.eos_token_id == lm.tokenizer.eos_id

    prompt = lm.encode("a fox")
    greedy = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :].tolist()
    assert lm.generate([prompt], temperature=0, max_new_tokens=8)[0].token_ids == greedy


def test_a_run_is_not_replaced_by_a_model_that_is_saved(tmp_path):
    run = onehop.train(recipe(tmp_path))
    before = {file: file.read_bytes() for file in run.out.rglob("*") if file.is_file()}
    for layout in ("hf", "onehop"):
        with pytest.raises(CheckpointError, match=r" holds a run \(recipe\.toml\), .*Name another\.$"):
            onehop.load(run.out).save(run.out, format=layout)
    assert {file: file.read_bytes() for file in run.out.rglob("*") if file.is_file()} == before
