"""Every family: their random model gives the same logits and the same greedy text here, and ours the same there."""

import pytest
import torch

import onehop
from tests.parity import classic, dense, encoders, llama_kin, with_experts
from tests.parity.theirs import old_style, tokens

CASES = {**llama_kin.CASES, **dense.CASES, **classic.CASES, **encoders.CASES, **with_experts.CASES}
# At logits of order 1. Both run in float64, but rotary angles, ALiBi biases and the statistics of some norms of theirs
# are float32: 2^-24 relative at angles to 100, then a few layers whose weights are spread widely.
TOLERANCE = 2e-4
NEW = 24


def near(ours, theirs, tolerance=TOLERANCE):
    atol = tolerance * max(1.0, theirs.std().item())
    torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_family_means_the_same_on_both_sides(tmp_path, name):
    case = CASES[name]
    model, x, t = case.build(), tokens(), tokens(30, seed=10)
    want = case.logits(model, x, t)
    assert want.std() > 0.1  # logits of order 1, or the tolerance would say nothing
    model.save_pretrained(tmp_path / "theirs")

    lm = onehop.load(tmp_path / "theirs", dtype=case.dtype)
    near(lm.model(x, t) if case.kind == "seq2seq" else lm.model(x), want)
    lm.save(tmp_path / "ours", format="hf")
    # Their own code on the same weights and the same config: only the dtype's rounding in another order may differ.
    # Both are reopened: a model made in float32 and converted has buffers in float32, such as an embedding's scale.
    theirs, ours = (case.logits(case.reopen(tmp_path / side), x, t) for side in ("theirs", "ours"))
    near(ours, theirs, 1e-10 if case.dtype == torch.float64 else 1e-5)
    again = onehop.load(tmp_path / "ours", dtype=case.dtype)
    assert again.config == lm.config
    if case.kind != "masked":
        prompt = x[:1, :9]
        greedy = {"do_sample": False, "eos_token_id": None, "forced_eos_token_id": None, "pad_token_id": 0}
        greedy["use_cache"] = case.kind == "causal"  # T5's has as many layers as the encoder: too few, or too many
        read = 9 if case.kind == "causal" else 1  # the prompt, or the token that begins an answer
        theirs = model.generate(prompt, **greedy, max_new_tokens=NEW)[0, read:].tolist()
        got = lm.generate(prompt.tolist(), max_new_tokens=NEW, temperature=0.0, ignore_eos=True)
        assert list(got[0].token_ids) == theirs
    if old_style(tmp_path / "theirs", case):
        assert onehop.load(tmp_path / "theirs", dtype=case.dtype).config == lm.config
