"""The public face: texts or ids in, answers out, options resolved, nothing lost on the way to disk and back."""

import json

import pytest
import torch

import onehop
from onehop.base.errors import CheckpointError, ConfigError, RequestError, TextError
from onehop.lm import LanguageModel, load
from onehop.parts.linear import is_packed, unpack
from tests.golden import case_model
from tests.small_models import decoder, encoder_decoder, small_model
from tests.text.small_tokenizers import bytes_only

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def language_model(*, dtype=torch.float64, settings=None, **own):
    """A model with random weights whose tokens are bytes; its head has five rows for which there is no token."""
    tokenizer = bytes_only(**({"eos": "<|eos|>"} if settings is None else settings))
    model = small_model(decoder(vocab_size=264, **own.pop("config", {})), dtype=dtype)
    return LanguageModel(model, tokenizer, **own)


def test_public_names_are_found_at_the_top():
    assert onehop.LanguageModel is LanguageModel
    assert onehop.load is load


def test_texts_and_ids_give_the_same_answers_one_or_several():
    lm = language_model()
    options = {"max_new_tokens": 5, "temperature": 0.0}
    one, array = lm.generate("ab", **options), torch.tensor([97, 98])
    for same in (["ab"], [97, 98], [[97, 98]], (97, 98), array, array.unsqueeze(0), [array], array.numpy()):
        assert lm.generate(same, **options) == one
    assert lm.generate(["ab", "c"], **options) == [*one, *lm.generate("c", **options)]
    assert lm.generate([], **options) == []


def test_an_answer_says_all_about_itself():
    lm = language_model()
    (done,) = lm.generate("ab", max_new_tokens=5, seed=3, logprobs=2)
    assert done.text == lm.tokenizer.decode(done.token_ids)
    assert len(done.token_ids) == len(done.logprobs) == 5
    assert [entry.id for entry in done.logprobs] == done.token_ids
    assert {len(entry.top) for entry in done.logprobs} == {2}
    assert (done.finish_reason, done.n_prompt_tokens, done.seed) == ("length", 2, 3)
    (done,) = lm.generate("ab", max_new_tokens=5, temperature=0.0)
    assert (done.logprobs, done.seed) == (None, None)


def test_a_stream_joins_to_the_whole_answer():
    lm = language_model()
    for seed in range(5):
        options = {"max_new_tokens": 12, "seed": seed, "temperature": 1.0, "logprobs": 1}
        (whole,) = lm.generate("ab", **options)
        pieces = list(lm.stream("ab", **options))
        assert "".join(piece.text for piece in pieces) == whole.text
        assert [piece.token_id for piece in pieces] == whole.token_ids
        assert [piece.logprob for piece in pieces] == whole.logprobs
        assert pieces[-1].finish_reason == whole.finish_reason


def test_an_unseeded_answer_tells_the_seed_that_repeats_it():
    lm = language_model()
    first, second = lm.generate(["ab", "ab"], max_new_tokens=20, temperature=1.5)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    (again,) = lm.generate("ab", max_new_tokens=20, temperature=1.5, seed=second.seed)
    assert again == second


def test_one_seed_is_for_every_prompt_and_a_list_has_one_for_each():
    lm = language_model()
    a, b = lm.generate(["ab", "ab"], max_new_tokens=9, seed=4)
    assert a == b
    c, d = lm.generate(["ab", "ab"], max_new_tokens=9, seed=[4, 5])
    assert c == a
    assert d.seed == 5
    with pytest.raises(RequestError, match=r"^seed has 3 numbers for 2 prompts\. Give one, or one for each\.$"):
        lm.generate(["ab", "ab"], seed=[1, 2, 3])


def test_no_token_is_said_for_which_the_tokenizer_has_no_text():
    lm = language_model()
    with torch.no_grad():
        lm.model.head.projection.weight[259:] *= 50  # the rows without a token now beat all others
    assert lm.limits.n_ids == 259
    (done,) = lm.generate("ab", max_new_tokens=30, temperature=1.0, seed=0, logprobs=300)
    assert max(done.token_ids) < 259
    assert {len(entry.top) for entry in done.logprobs} == {259}


def test_refusals_come_in_one_line():
    lm = language_model()
    for call, text in [
        (lambda: lm.generate(""), r"^the prompt is empty and this model has no start token"),
        (
            lambda: lm.generate("a" * 65),
            r"^the prompt has 65 tokens and this model's context holds 64\. Shorten it by 1",
        ),
        (lambda: lm.generate([[300]]), r"^the prompt holds token id 300, but this model's ids end at 258"),
        (lambda: lm.generate("a", temprature=1), r"Did you mean temperature\?$"),
        (lambda: lm.stream("a", temperature=-1), r"^temperature=-1 must be a finite number, 0 \(greedy\) or more$"),
        (lambda: LanguageModel(lm.model).generate("text"), r"^this model has no tokenizer, so text cannot be encoded"),
        (lambda: lm.generate([1.5]), r"^a prompt is a text or a list of token ids, not 1\.5$"),
        (lambda: lm.save("x", format="ggml"), r"^format='ggml' cannot be written\. Use hf, onehop or gguf\.$"),
    ]:
        with pytest.raises((RequestError, CheckpointError), match=text) as refusal:
            call()
        assert "\n" not in str(refusal.value)


def test_the_begin_token_starts_an_empty_prompt():
    lm = language_model(settings={"bos": "<|im_start|>"})
    assert lm.generate("", max_new_tokens=1)[0].n_prompt_tokens == 1


def test_chat_uses_the_checkpoints_template_and_generate_none():
    lm = language_model(settings={"eos": "<|im_end|>", "chat_templates": {"default": TEMPLATE}})
    messages = [{"role": "user", "content": "Hi<|im_end|>"}]
    ids = lm.encode_chat(messages)
    assert ids.count(258) == 1  # the one that the template wrote
    options = {"max_new_tokens": 7, "temperature": 0.0}
    assert lm.chat(messages, **options) == lm.generate(ids, **options)[0]
    assert lm.requests("Hi")[0].prompt == (72, 105)


def test_chat_without_a_template_is_refused_and_names_generate():
    with pytest.raises(TextError, match=r"no chat template.*generate"):
        language_model().chat([{"role": "user", "content": "Hi"}])


def test_options_are_resolved_in_their_order():
    lm = language_model(generation_config={"temperature": 0.0, "max_new_tokens": 3})
    assert lm.resolve(top_k=5)["temperature"] == (0.0, "generation_config.json")
    (done,) = lm.generate("ab")
    assert (len(done.token_ids), done.seed) == (3, None)
    (done,) = lm.generate("ab", temperature=0.9, max_new_tokens=4)
    assert (len(done.token_ids), done.seed is None) == (4, False)


def test_the_model_is_an_ordinary_module_that_learns_and_is_then_asked_again():
    """Prepared copies of the weights must never answer for weights that have changed."""
    lm = language_model(dtype=torch.float32)
    tokens = torch.tensor([[97, 98, 99]])
    lm.generate("abc", max_new_tokens=1, temperature=0.0)  # prepares the weights
    loss = torch.nn.functional.cross_entropy(lm.model(tokens)[0], torch.tensor([100, 100, 100]))
    loss.backward()
    torch.optim.SGD(lm.model.parameters(), lr=0.5).step()
    with torch.no_grad():
        now = lm.model(tokens)
        unpack(lm.model)
        assert torch.equal(now, lm.model(tokens))
    for _ in range(30):
        lm.model.zero_grad()
        torch.nn.functional.cross_entropy(lm.model(tokens)[0], torch.tensor([100, 100, 100])).backward()
        torch.optim.SGD(lm.model.parameters(), lr=0.5).step()
    assert lm.generate("abc", max_new_tokens=1, temperature=0.0)[0].token_ids == [100]


def test_a_change_of_dtype_is_followed():
    lm = language_model(dtype=torch.float32)
    lm.generate("abc", max_new_tokens=2, temperature=0.0, logprobs=0)
    lm.model.double()
    twin = LanguageModel(lm.model, lm.tokenizer, prepare=False)
    options = {"max_new_tokens": 4, "temperature": 0.0, "logprobs": 3}
    assert lm.generate("abc", **options) == twin.generate("abc", **options)


def test_weights_are_prepared_unless_their_copy_would_fill_the_memory(monkeypatch):
    lm = language_model(dtype=torch.float32)
    assert lm.prepare
    bytes_ = sum(p.numel() * p.element_size() for p in lm.model.parameters())
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": bytes_, "SC_PAGE_SIZE": 3}.get)
    assert not LanguageModel(lm.model).prepare
    assert LanguageModel(lm.model, prepare=True).prepare


def test_prepared_weights_say_what_plain_ones_say():
    lm = language_model(dtype=torch.float32)
    plain = LanguageModel(small_model(lm.config, dtype=torch.float32), lm.tokenizer, prepare=False)
    options = {"max_new_tokens": 20, "temperature": 0.0, "logprobs": 0}
    (a,), (b,) = lm.generate("abc", **options), plain.generate("abc", **options)
    assert a.token_ids == b.token_ids
    for x, y in zip(a.logprobs, b.logprobs):
        assert x.logprob == pytest.approx(y.logprob, abs=1e-4)  # float32, logits up to 20


@pytest.mark.parametrize("format", ["onehop", "hf"])
def test_what_is_saved_and_loaded_answers_the_same(tmp_path, format):
    lm = language_model(
        settings={"eos": "<|im_end|>", "chat_templates": {"default": TEMPLATE}},
        generation_config={"temperature": 0.7, "top_k": 40},
        provenance={"made by": "a test"},
        dtype=torch.float32,
    )
    lm.save(tmp_path / "a", format=format)
    again = load(tmp_path / "a")
    again.save(tmp_path / "b", format=format)
    for found in (again, load(str(tmp_path / "b"))):
        assert found.config == lm.config
        assert found.eos_ids == {258}
        assert found.resolve()["top_k"] == (40, "generation_config.json")
        assert found.tokenizer.fingerprint == lm.tokenizer.fingerprint
        assert found.provenance == (lm.provenance if format == "onehop" else None)
        for prompt in ("abc", [1, 2, 250]):
            assert found.generate(prompt, seed=1, max_new_tokens=9) == lm.generate(prompt, seed=1, max_new_tokens=9)
        assert found.chat([{"role": "user", "content": "x"}], seed=1) == lm.chat(
            [{"role": "user", "content": "x"}], seed=1
        )


def test_a_saved_encoder_decoder_knows_what_its_answers_begin_with(tmp_path):
    lm = LanguageModel(small_model(encoder_decoder(), dtype=torch.float32), start_id=4)
    lm.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.limits.start_id == 4
    options = {"seed": 0, "max_new_tokens": 9}
    assert again.generate([[1, 2, 3]], **options) == lm.generate([[1, 2, 3]], **options)


def test_end_tokens_of_every_file_count(tmp_path):
    lm = language_model(settings={"eos": "<|im_end|>"})
    lm.save(tmp_path / "a")
    file = tmp_path / "a" / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [256, 7]}))
    assert load(tmp_path / "a").eos_ids == {7, 256, 258}


def test_a_layout_that_cannot_express_the_model_is_refused_and_nothing_is_written(tmp_path):
    lm = language_model(config={"attention": {"sinks": True, "window": 3}, "position": "alibi"})
    with pytest.raises(ConfigError):
        lm.save(tmp_path / "a", format="hf")
    assert not (tmp_path / "a").exists()


def test_loading_in_another_precision_or_without_preparation(tmp_path):
    language_model(dtype=torch.float32).save(tmp_path / "a")
    lm = load(tmp_path / "a", dtype="bfloat16", kernel="plain", prepare=False)
    assert lm.model.embed.tokens.weight.dtype == torch.bfloat16
    lm.generate("abc", max_new_tokens=2)
    assert not is_packed(lm.model)


def test_what_is_no_prompt_and_no_kernel_is_refused_at_once():
    with pytest.raises(RequestError, match=r"^prompts are texts or lists of token ids, not None$"):
        LanguageModel(case_model()).generate(None)
    with pytest.raises(ConfigError, match=r"^kernel 'fuse' does not exist\. Did you mean fused\?$"):
        LanguageModel(case_model(), kernel="fuse")
