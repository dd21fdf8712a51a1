"""Rows of the embedding beyond the tokenizer's ids are kept, give logits, and are never drawn."""

import pytest
import torch

import onehop
from onehop.base.errors import RequestError
from onehop.lm import LanguageModel
from tests.parity.theirs import transformers
from tests.small_models import decoder
from tests.text.small_tokenizers import byte_fallback
from tests.weights.compare import same_weights

SPARE = 5


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def padded(request):
    """A model whose spare rows are the likeliest by far, wherever it stands."""
    tokenizer = byte_fallback(add_bos=True)
    n = tokenizer.vocab_size
    model = onehop.build(decoder(vocab_size=n + SPARE, head={"tied": request.param}), seed=3).eval()
    with torch.no_grad():
        model.final_norm.weight.abs_()
        rows = model.embed.tokens.weight if request.param else model.head.projection.weight
        others = model(torch.arange(n)[None, :40]).amax()
        state = model.states(torch.arange(40)[None]).hidden[0].mean(0)
        rows[n:] = 1e3 * state * (1 + others.abs())
    return LanguageModel(model, tokenizer), n


PROMPTS = ["the thin", "a", "▁ b c"]


def drawn(lm, **options):
    answers = lm.generate(PROMPTS, max_new_tokens=20, ignore_eos=True, **options)
    return [list(answer.token_ids) for answer in answers]


def logits(lm):
    with torch.no_grad():
        return lm.model(torch.tensor([lm.encode("the thin cat")]))


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 5.0, "seed": 1, "top_k": 3}, {
    "temperature": 1.0, "seed": 2, "top_p": 0.9, "repetition_penalty": 1.2}])  # fmt: skip
def test_spare_rows_have_logits_and_are_never_drawn(padded, options):
    lm, n = padded
    found = logits(lm)
    assert found.size(-1) == n + SPARE
    assert bool((found.argmax(-1) >= n).any()), "the test would pass if nothing were kept out"
    assert all(token < n for row in drawn(lm, **options) for token in row)


def test_spare_rows_take_no_part_in_what_is_told_about_a_token(padded):
    lm, n = padded
    (answer,) = lm.generate("the thin", max_new_tokens=4, temperature=0.0, logprobs=3, ignore_eos=True)
    first = logits_after(lm, "the thin")[:n].float().log_softmax(-1)
    assert answer.logprobs[0].logprob == pytest.approx(float(first.max()), abs=1e-4)  # float32 sums in another order
    assert all(i < n for told in answer.logprobs for i, _ in told.top)
    with pytest.raises(RequestError, match=f"token id {n}, but this model's ids end at {n - 1}"):
        lm.generate([[1, n]])


def logits_after(lm, text):
    with torch.no_grad():
        return lm.model(torch.tensor([lm.encode(text)]))[0, -1]


@pytest.mark.parametrize("name", ["hf", "onehop", "a.gguf"])
def test_spare_rows_are_written_and_read_again_in_every_layout(padded, tmp_path, name):
    lm, n = padded
    lm.save(tmp_path / name, format="gguf" if name.endswith(".gguf") else name)
    again = onehop.load(tmp_path / name)
    same_weights(again.model, lm.model)
    assert again.model.embed.tokens.weight.size(0) == n + SPARE
    assert again.config.head.tied == lm.config.head.tied
    assert again.limits.n_ids == n
    assert torch.equal(logits(again), logits(lm))
    assert drawn(again, temperature=0.0) == drawn(lm, temperature=0.0)


def test_transformers_gives_the_same_logits_for_all_rows(padded, tmp_path):
    lm, n = padded
    lm.save(tmp_path / "a", format="hf", dtype="float64")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float64)
    x = torch.tensor([lm.encode("the thin cat")])
    with torch.no_grad():
        want, got = theirs(x).logits, onehop.load(tmp_path / "a", dtype="float64").model(x)
    assert want.size(-1) == n + SPARE
    # Their table of angles is float32: 2^-24 relative, at angles of order 10.
    torch.testing.assert_close(got[..., :n], want[..., :n], rtol=0, atol=1e-4)
    torch.testing.assert_close(got[..., n:], want[..., n:], rtol=1e-4, atol=0)
