"""How likely given text is: known log-probabilities, windows over long texts, bits per byte."""

import math

import pytest
import torch

from onehop.base.errors import DataError, RequestError
from onehop.lm import Evaluation, LanguageModel
from tests.golden import case_model
from tests.small_models import CONFIGS, DYNAMIC, LONGROPE, decoder, encoder_decoder, small_model
from tests.text.small_tokenizers import byte_fallback, bytes_only

BOTH_WAYS = decoder(attention={"sees": "all"})
KNOWN = [-6.100632238993, -5.076490282938, -7.960057978007]
CUT = [-10.49600599067, -5.383277835774, -8.32905193886]


def test_a_continuation_has_the_known_log_probabilities_its_first_token_included():
    found = LanguageModel(case_model()).score([1, 5, 2], [7, 3, 9])
    assert found.token_logprobs == pytest.approx(KNOWN, abs=1e-9)
    assert found.logprob == pytest.approx(-19.13718049994, abs=1e-9)
    assert found.greedy_ids == [6, 6, 1]
    assert not found.is_greedy


def test_what_greedy_decoding_says_scores_as_greedy():
    lm = LanguageModel(case_model())
    (done,) = lm.generate([1, 5, 2], max_new_tokens=4, temperature=0.0, logprobs=0)
    found = lm.score([1, 5, 2], done.token_ids)
    assert found.is_greedy
    assert found.token_logprobs == pytest.approx([entry.logprob for entry in done.logprobs], abs=1e-9)


def test_a_long_context_is_cut_from_the_left_and_the_continuation_stays_whole():
    model = case_model()
    model.config = model.config.model_copy(update={"max_len": 4})
    found = LanguageModel(model).score([1, 5, 2], [7, 3, 9])
    assert found.token_logprobs == pytest.approx(CUT, abs=1e-9)
    with pytest.raises(
        RequestError, match=r"^the continuation has 4 tokens, .* context of 4 is exceeded\. Shorten it\.$"
    ):
        LanguageModel(model).score([1], [7, 3, 9, 9])


def test_an_empty_context_needs_a_start_token():
    with pytest.raises(RequestError, match=r"^the context is empty and this model has no start token\. Give a context"):
        LanguageModel(case_model()).score([], [7])
    lm = LanguageModel(case_model(), start_id=1)
    assert lm.score([], [7, 3]) == lm.score([1], [7, 3])


def test_empty_continuations_foreign_ids_and_mixed_kinds_are_refused():
    lm = LanguageModel(case_model())
    for context, continuation, text in [
        ([1], [], "the continuation is empty"),
        ([1], [13], "token id 13, but this model's ids end at 12"),
        ([1], "a", "must both be text or both be token ids"),
    ]:
        with pytest.raises(RequestError, match=text):
            lm.score(context, continuation)


def with_text(tokenizer):
    return LanguageModel(small_model(decoder(vocab_size=tokenizer.vocab_size)), tokenizer)


def test_texts_score_as_their_ids():
    lm = with_text(bytes_only())
    assert lm.score("ab", "cd") == lm.score([97, 98], [99, 100])


def test_a_token_that_spans_the_join_is_scored_whole():
    """ " th" and "e" together are one token, "▁the": the scored part begins with it."""
    lm = with_text(byte_fallback())
    found = lm.score("on th", "e")
    assert found.token_ids == lm.encode("on the")[-1:]
    assert found.token_ids != lm.encode("e")
    assert found == lm.score(lm.encode("on"), found.token_ids)


def test_a_context_that_lies_in_a_token_of_the_continuation_is_not_called_empty():
    lm = with_text(byte_fallback(bos=None, bos_template=False))
    with pytest.raises(RequestError, match=r"^one token spans 't' and the continuation's begin.*Give a longer context"):
        lm.score("t", "he")


def test_an_encoder_decoder_scores_an_answer_to_a_source():
    lm = LanguageModel(small_model(encoder_decoder()), start_id=0)
    found = lm.score([4, 2, 9], [7, 3])
    logits = lm.model(torch.tensor([[4, 2, 9]]), torch.tensor([[0, 7]]))[0].log_softmax(-1).detach()
    assert found.token_logprobs == pytest.approx([float(logits[0, 7]), float(logits[1, 3])], abs=1e-9)
    with pytest.raises(RequestError, match="no loss on plain text"):
        lm.evaluate([[1, 2]])


def by_hand(model, ids, context, stride):
    """Every token's loss in the first window that holds it as a target, one window at a time."""
    losses = {}
    for start in range(0, len(ids), stride):
        part = torch.tensor([ids[start : start + context + 1]])
        logprobs = model(part[:, :-1])[0].log_softmax(-1)
        for i, target in enumerate(part[0, 1:].tolist()):
            losses.setdefault(start + 1 + i, -float(logprobs[i, target]))
    return losses


READ = {name: CONFIGS[name] for name in ("rope", "learned")} | {
    scaling["kind"]: decoder(scaling=scaling | {"original_max_len": 4}) for scaling in (DYNAMIC, LONGROPE)
}


@pytest.mark.parametrize("stride", [1, 5, 8])
@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_long_texts_are_read_in_windows_and_every_token_counts_once(name, stride):
    model = small_model(READ[name].model_copy(update={"max_len": 8}))
    lm = LanguageModel(model)
    texts = [torch.randint(13, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 2, 9, 10, 30)]
    losses = [loss for ids in texts for loss in by_hand(model, ids, 8, stride).values()]
    found = lm.evaluate(texts, stride=stride)
    assert found.n_tokens == len(losses) == sum(len(ids) - 1 for ids in texts)
    assert found.loss == pytest.approx(math.fsum(losses) / len(losses), abs=1e-10)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert f"windows of 8 tokens, stride {stride}" in found.how
    assert found.documents[0] is None  # one token: nothing to score
    for ids, own in zip(texts[1:], found.documents[1:], strict=True):
        alone = list(by_hand(model, ids, 8, stride).values())
        assert own.n_tokens == len(alone)
        assert own.loss == pytest.approx(math.fsum(alone) / len(alone), abs=1e-10)
    assert sum(part.n_tokens for _, _, part in found.positions) == found.n_tokens
    parts = [part.loss * part.n_tokens for _, _, part in found.positions]
    assert math.fsum(parts) == pytest.approx(math.fsum(losses), abs=1e-9)


@torch.no_grad()
def test_the_loss_by_position_counts_the_tokens_that_stand_before():
    """Nine tokens in a context of 8: targets behind 1, 2-3, 4-7 and 8 tokens; then windows of 8, each by 8 new ones."""
    model = small_model(READ["rope"].model_copy(update={"max_len": 8}))
    lm, ids = LanguageModel(model), [1, 5, 2, 9, 4, 7, 3, 3, 0]
    losses = list(by_hand(model, ids, 8, 8).values())
    for texts in ([ids], [ids, ids[:4]]):
        found = lm.evaluate(texts, stride=8).positions
        groups = [(1, 1), (2, 3), (4, 7), (8, 8)]
        assert [(first, last) for first, last, _ in found] == groups
        for first, last, part in found:
            wanted = losses[first - 1 : last] + (losses[first - 1 : min(last, 3)] if len(texts) > 1 else [])
            assert part.n_tokens == len(wanted)
            assert part.loss == pytest.approx(math.fsum(wanted) / len(wanted), abs=1e-10)
    twice = lm.evaluate([ids + ids[1:]], stride=8).positions
    assert [part.n_tokens for _, _, part in twice] == [2, 4, 8, 2]


@pytest.mark.parametrize("name", READ)
def test_one_text_scores_alike_as_a_continuation_and_as_a_text(name):
    """Both are one pass, also where a text that grows token by token would have other angles."""
    lm, ids = LanguageModel(small_model(READ[name])), [1, 5, 2, 9, 4, 7, 3, 3, 0, 12]
    assert lm.score(ids[:1], ids[1:]).logprob == pytest.approx(-9 * lm.evaluate([ids]).loss, abs=1e-10)


def test_bits_per_byte_count_the_bytes_of_what_is_scored():
    lm = with_text(bytes_only(bos="<|im_start|>"))
    found = lm.evaluate(["né", "ab"])
    assert (found.n_tokens, found.n_bytes) == (5, 5)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2))
    assert "from the begin token" in found.how
    without = with_text(bytes_only()).evaluate(["né", "ab"])  # the first token of each has nothing before it
    assert (without.n_tokens, without.n_bytes) == (3, 3)
    lm = with_text(bytes_only())
    assert lm.evaluate("néab") == lm.evaluate(["néab"])
    assert LanguageModel(case_model()).evaluate([[1, 2, 3]]).bits_per_byte is None


def test_nothing_to_score_and_impossible_strides_are_refused():
    lm = LanguageModel(case_model())
    with pytest.raises(DataError, match=r"^no token to score: the texts are empty, or hold one token each"):
        lm.evaluate([[1], []])
    with pytest.raises(RequestError, match=r"^stride=0 must be a whole number between 1 and this model's context"):
        lm.evaluate([[1, 2]], stride=0)
    with pytest.raises(RequestError, match=r"^stride=1\.5 must be a whole number"):
        lm.evaluate([[1, 2]], stride=1.5)
    with pytest.raises(RequestError, match=r"^a prompt is a text or a list of token ids, not 1$"):
        lm.evaluate([1, 2, 3])
    with pytest.raises(RequestError, match=r"^a prompt is a text or a list of token ids, not \[1\.5\]$"):
        lm.score([1.5], [2])
    with pytest.raises(RequestError, match="token id 99"):
        lm.evaluate([[1, 99]])


def test_the_perplexity_of_a_hopeless_model_is_infinite_and_no_error():
    assert Evaluation(710.0, 1, None, "").perplexity == math.inf
    assert Evaluation(1.0, 1, None, "").perplexity == math.e


@pytest.mark.parametrize(("source", "answer", "what"), [([1] * 65, [2], "source"), ([1], [2] * 65, "answer")])
def test_what_exceeds_the_context_of_an_encoder_decoder_is_refused(source, answer, what):
    lm = LanguageModel(small_model(encoder_decoder(max_len=64)), start_id=0)
    with pytest.raises(
        RequestError, match=rf"^the {what} has 65 tokens, and this model's context is 64\. Shorten it\.$"
    ):
        lm.score(source, answer)
    assert len(lm.score(source[:64], answer[:64]).token_ids) == len(answer[:64])


def test_a_model_that_reads_both_ways_scores_no_text():
    """It sees the token that it would be asked about."""
    lm = LanguageModel(small_model(BOTH_WAYS))
    reads = (
        r"^this model reads both ways \(attention\.sees=all\): at each place it predicts that token, not the next, so "
    )
    with pytest.raises(RequestError, match=reads + r"a continuation has no score\. Take"):
        lm.score([1, 2], [3])
    with pytest.raises(RequestError, match=reads + r"a text has no loss\. Take"):
        lm.evaluate([[1, 2, 3]])
    with pytest.raises(RequestError, match=reads + r"it cannot continue a text\. Take"):
        lm.generate([[1, 2]])
    with pytest.raises(RequestError, match=reads + r"it cannot continue a text\. Take"):
        lm.stream([1, 2])
