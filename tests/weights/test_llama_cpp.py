"""llama.cpp runs the files that are written here, and means by them what onehop means."""

from pathlib import Path

import numpy as np
import pytest
import torch

import onehop
from onehop.formats.gguf import ARCHITECTURES
from onehop.lm import LanguageModel
from onehop.lm.convert import convert
from onehop.weights import save_gguf
from tests.gguf_models import CASES
from tests.text.small_tokenizers import HARD_TEXTS, byte_fallback
from tests.weights.test_gguf import made

llama_cpp = pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.slow

N = 24  # tokens
STORIES = Path(__file__).parents[3] / "shared" / "models" / "stories260K"
TEXT = Path(__file__).parents[2] / "docs" / "textbook.md"  # English prose
# Sums of float32 numbers in another order, and exp, tanh and cos by their own tables: 2^-11 relative at logits of a few
# units. Gelu is looked up there in a table of half precision, and is the tanh form for every architecture.
TOLERANCE, BY_TABLE = 5e-3, 5e-2
# What their code leaves out though the file says it: windows in phi3.
LEFT_OUT = {"phi3"}


def opened(file, n_ctx=64):
    """Their model of a file, with keys and values in float32 (half precision, their default, is 1e-2 off)."""
    wide = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    return llama_cpp.Llama(str(file), n_ctx=n_ctx, logits_all=True, verbose=False, n_gpu_layers=0, **wide)


def greedy(theirs, ids, n):
    """The n likeliest tokens one after another."""
    theirs.reset()
    theirs.eval(ids)
    found = []
    for _ in range(n):
        found.append(int(np.argmax(theirs.scores[theirs.n_tokens - 1])))
        theirs.eval(found[-1:])
    return found


def their_logits(file, ids):
    theirs = opened(file)
    theirs.eval(list(ids))
    return torch.from_numpy(np.array(theirs.scores[: len(ids)], dtype=np.float32))


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT_OUT])
def test_an_architecture_has_the_same_logits_there(tmp_path, name):
    architecture, config = CASES[name]
    model = made(config)
    save_gguf(model, tmp_path / "a.gguf", family=ARCHITECTURES.get(architecture), tokenizer=None)
    ids = torch.randint(61, (1, N), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours = model(ids)[0]
    gelu = "gelu" in str(config.blocks[0].ffn)
    theirs = their_logits(tmp_path / "a.gguf", ids[0].tolist())
    torch.testing.assert_close(theirs, ours, rtol=0, atol=BY_TABLE if gelu else TOLERANCE)


def test_the_tokenizer_gives_the_same_ids_there_and_greedy_text_is_the_same(tmp_path):
    tokenizer = byte_fallback(add_bos=True)
    config = CASES["llama"][1].with_vocab(tokenizer.vocab_size)
    lm = LanguageModel(made(config), tokenizer)
    lm.save(tmp_path / "a.gguf", format="gguf")
    theirs = opened(tmp_path / "a.gguf")
    for text in HARD_TEXTS:
        if len(text) < 60 and "\x00" not in text:  # C strings end there
            assert theirs.tokenize(text.encode(), special=False) == lm.encode(text), text
    assert (
        greedy(theirs, lm.encode("the on"), 16)
        == lm.generate("the on", temperature=0.0, max_new_tokens=16)[0].token_ids
    )


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-4), ("float16", 0.05), ("bfloat16", 0.3), ("q8_0", 1.0)])
def test_a_trained_model_tells_its_story_there_in_every_type(tmp_path, dtype, atol):
    """Logits up to 22; with weights of fewer bits they round what they multiply too, to 11, 8 and 7 bits."""
    if not STORIES.is_dir():
        pytest.skip("the trained model is not beside this checkout")
    convert(STORIES, tmp_path / "a.gguf", dtype=dtype)
    lm, theirs = onehop.load(tmp_path / "a.gguf", dtype="float32"), opened(tmp_path / "a.gguf", n_ctx=256)
    ids = lm.encode("Once upon a time")
    told = lm.generate([ids], temperature=0.0, max_new_tokens=100)[0].token_ids
    assert greedy(theirs, ids, 40) == told[:40]
    theirs.reset()
    theirs.eval([*ids, *told])
    with torch.no_grad():
        ours = lm.model(torch.tensor([[*ids, *told]]))[0]
    other = torch.from_numpy(np.array(theirs.scores[: len(ours)], dtype=np.float32))
    torch.testing.assert_close(other, ours, rtol=0, atol=atol)


@pytest.mark.real_model
def test_a_published_model_means_the_same_there(gemma_file, tmp_path):
    """The likeliest token at 99 % of 500 places of real text, mean KL below 1e-3, and the same greedy text.

    Its weights are written as float32 here: with weights of few bits they round what they multiply to 8 bits, and agree
    at 96 % of the places with themselves.
    """
    lm = onehop.load(gemma_file, dtype="float32")
    lm.save(tmp_path / "wide.gguf", format="gguf")
    ids = lm.encode(TEXT.read_text())[:500]
    with torch.no_grad():
        ours = lm.model(torch.tensor([ids]))[0].log_softmax(-1)
    theirs = opened(tmp_path / "wide.gguf", n_ctx=512)
    assert theirs.tokenize(TEXT.read_bytes())[:500] == ids
    theirs.eval(ids)
    other = torch.from_numpy(np.array(theirs.scores[:500], dtype=np.float32)).log_softmax(-1)
    assert (ours.argmax(-1) == other.argmax(-1)).float().mean() >= 0.99
    assert (other.exp() * (other - ours)).sum(-1).mean() < 1e-3
    prompt = lm.encode("The capital of France is")
    answer = lm.generate([prompt], temperature=0.0, max_new_tokens=24)[0].token_ids
    assert greedy(theirs, prompt, 24)[: len(answer)] == answer
