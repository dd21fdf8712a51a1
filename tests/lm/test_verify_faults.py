"""`verify` must be able to fail: one fault at a time, each reported by the check that can see it, and where it is."""

import dataclasses
import sys

import pytest
import torch
from tokenizers import AddedToken, normalizers

import onehop
from onehop.config.position import SCALINGS
from onehop.lm import LanguageModel, check_kernels, check_text
from onehop.lm.convert import convert
from onehop.lm.positions import formula, positions
from onehop.lm.verify import verify
from onehop.model import compiler
from onehop.parts.constant import Constant
from onehop.parts.sight import Sees, Sight
from onehop.text.bpe import train_bpe
from tests.parity import classic, dense
from tests.parity.theirs import Case
from tests.small_models import CONFIGS, DYNAMIC, LLAMA3, LONGROPE, YARN, decoder, small_model
from tests.text.small_tokenizers import byte_fallback, bytes_only

THEIRS = "transformers, layer by layer, in float32"
FILES = "weights = those of the files, bit for bit"
WHOLE = "weights complete and finite"
EDGES = "kernels in float32, at the edge of each window"
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def folder(request, tmp_path_factory):
    """Their random model with q and k norms and with windows in its last layers, in 32 and in 16 bits."""
    keys = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 4}
    where = tmp_path_factory.mktemp("model")
    Case("qwen3", keys).build().to(request.param).save_pretrained(where)
    return where


def failing(lm, **options):
    return {check.name: check for check in verify(lm, **options) if check.passed is False}


def turned(layer):
    """Rows of wq as another library orders them: pairs (2j, 2j + 1) instead of (j, j + D/2)."""
    heads, d = layer.attention.q_heads.shape
    w = layer.attention.wq.weight
    w.copy_(w.view(heads, 2, d // 2, -1).transpose(1, 2).reshape(w.shape).clone())


def swapped(layer):
    layer.ffn.w1, layer.ffn.w3 = layer.ffn.w3, layer.ffn.w1


def narrower(layer):
    layer.attention.sees = Sees("causal", layer.attention.sees.window - 1)


def without_q_norm(layer):
    layer.attention.q_heads.norm = torch.nn.Identity()


def one_nan(layer):
    layer.ffn.w2.weight[3, 5] = torch.nan


def test_nothing_is_reported_of_a_model_that_is_right(folder):
    found = verify(onehop.load(folder))
    assert [check.name for check in found if check.passed is False] == []
    theirs = next(check for check in found if check.name == THEIRS)
    assert theirs.note == "4 layers, each from the same input"


@pytest.mark.parametrize("case", ["gpt2, 3 odd heads", "gemma3_text", "falcon, alibi, new", "bloom, 4 heads"])
def test_what_16_bits_round_outside_the_layers_is_no_fault(tmp_path, case):
    """Learned positions added in bfloat16, a scaled embedding, a norm on it; and kernels of theirs that disagree."""
    {**classic.CASES, **dense.CASES}[case].build().to(torch.bfloat16).save_pretrained(tmp_path)
    found = {check.name: check for check in verify(onehop.load(tmp_path))}
    assert [name for name, check in found.items() if check.passed is False] == []
    assert found[THEIRS].passed


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (turned, {THEIRS, FILES}),
        (swapped, {THEIRS, FILES}),
        (narrower, {THEIRS}),  # the files have no tensor that would tell
        (without_q_norm, {THEIRS, FILES, WHOLE}),
        (one_nan, {THEIRS, FILES, WHOLE}),
    ],
)
@torch.no_grad()
def test_a_fault_in_one_layer_is_reported_and_the_layer_named(folder, fault, found):
    lm = onehop.load(folder)
    fault(lm.model.layers[2])
    failed = failing(lm)
    assert failed.keys() >= found
    assert failed[THEIRS].where == "layers.2.out"
    named = [failed[name].note for name in found - {THEIRS}]
    assert all("layers.2." in note for note in named)


@torch.no_grad()
def test_without_any_files_the_config_tells_what_is_missing():
    lm = LanguageModel(small_model(decoder(attention={"qk_norm": {"norm": {"kind": "rms"}}}), dtype=torch.float32))
    without_q_norm(lm.model.layers[1])
    assert failing(lm)[WHOLE].note == "layers.1.attention.q_heads.norm.weight is missing"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_that_ignores_the_softcap_is_named_in_every_precision(monkeypatch, dtype):
    monkeypatch.setattr(sys.modules["onehop.parts.score"], "why_not_fused", lambda q, rule, sight: None)
    found = failing(LanguageModel(small_model(CONFIGS["softcap"], dtype=dtype)))
    assert found[EDGES].where == "layers.0.attention fused"
    paths = [check for name, check in found.items() if name.startswith("kernel fused = plain")]
    assert [check.where for check in paths] == ["layers.0.attention"] * (1 if dtype == torch.float32 else 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [3, 40])
def test_a_kernel_whose_window_is_one_too_wide_is_named(monkeypatch, dtype, window):
    tile = Sight.tile

    def wider(self, rows, cols):
        sees = dataclasses.replace(self.sees, window=self.sees.window + 1)
        return tile(Sight(sees, self.q, self.k, prefix=self.prefix), rows, cols)

    monkeypatch.setattr(Sight, "tile", wider)
    found = failing(LanguageModel(small_model(decoder(attention={"window": window}), dtype=dtype)))
    assert found[EDGES].where == "layers.0.attention tiled"
    assert found["kernel tiled = plain"].where == "layers.0.attention"


def test_texts_reach_beyond_the_windows():
    found = verify(LanguageModel(small_model(decoder(max_len=200, attention={"window": 100}), dtype=torch.float32)))
    ring = next(check for check in found if check.name == "decoding from a ring cache = recomputing")
    assert ring.passed
    auto = next(check for check in found if check.name == "kernel auto = plain")
    assert "116 × 116" in auto.note


def test_a_bfloat16_kernel_that_is_a_tenth_off_is_found(monkeypatch):
    """Once allowed: 0.2 of the largest logit."""
    attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, **own: 1.1 * attention(q, k, v, **own),
    )
    found = failing(LanguageModel(small_model(CONFIGS["rope"], dtype=torch.bfloat16)))
    assert found["kernel fused = plain, in float32"].where == "layers.0.attention"


def test_a_compiled_layer_is_compared(monkeypatch):
    """Without generating code, which takes a minute: `test_compiled_layers_agree` does."""
    lm = LanguageModel(small_model(CONFIGS["two kinds of layer"], dtype=torch.float32))
    for module in (check_kernels, sys.modules[verify.__module__]):
        monkeypatch.setattr(module, "no_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda module: module)
    (check,) = [c for c in verify(lm, compile=True) if c.name == "compiled = plain"]
    assert check.passed
    assert check.note == "kinds of layer: 2"
    monkeypatch.setattr(torch, "compile", lambda module: lambda x, *rest: module(1.01 * x, *rest))
    (check,) = [c for c in verify(lm, compile=True) if c.name == "compiled = plain"]
    assert check.passed is False


def test_where_there_is_no_compiler_it_is_said(monkeypatch):
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    lm = LanguageModel(small_model(CONFIGS["rope"], dtype=torch.float32))
    (check,) = [c for c in verify(lm, compile=True) if c.name == "compiled = plain"]
    assert check.passed is None
    assert check.note.startswith("there is no C++ compiler here")


@pytest.mark.slow
def test_compiled_layers_agree():
    lm = LanguageModel(small_model(CONFIGS["two kinds of layer"], dtype=torch.float32))
    (check,) = [c for c in verify(lm, compile=True) if c.name == "compiled = plain"]
    assert check.passed is not False


# Text


def with_tokenizer(tokenizer):
    return LanguageModel(small_model(decoder(vocab_size=400), dtype=torch.float32), tokenizer)


def test_tokenizers_of_every_kind_survive_the_round_trip():
    for tokenizer in (bytes_only(), byte_fallback()):
        assert "tokenizer: hard texts and back" not in failing(with_tokenizer(tokenizer))


def test_a_tokenizer_that_drops_a_character_is_found():
    tokenizer = bytes_only()
    tokenizer.backend.normalizer = normalizers.Replace("œ", "")
    note = failing(with_tokenizer(tokenizer))["tokenizer: hard texts and back"].note
    assert "11 of 12 texts come back exactly" in note
    assert "comes back changed at character 14: 'œuvre, Ε' as 'uvre, Ελ'" in note


LINT = "tokenizer and chat template"
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def linted(tokenizer):
    return next(check for check in verify(with_tokenizer(tokenizer)) if check.name == LINT)


def test_the_exact_ids_of_a_rendered_chat_are_shown():
    check = linted(bytes_only(bos="<|eos|>", chat_templates={"default": TEMPLATE}))
    assert check.passed
    assert "is [256, 257, 72, 101, 108, 108, 111, 32, 32, 116" in check.note


def test_two_begin_tokens_are_found():
    check = linted(bytes_only(bos="<|eos|>", chat_templates={"default": "{{ bos_token }}" + TEMPLATE}))
    assert check.passed is False
    assert "a rendered conversation holds 2 begin tokens" in check.note


def test_a_template_that_the_tokenizers_own_rule_would_double_is_told():
    check = linted(bytes_only(bos="<|eos|>", add_bos=True, chat_templates={"default": TEMPLATE}))
    assert check.passed  # onehop adds none
    assert "the template writes <|eos|> and the tokenizer's own rule adds it too" in check.note


def test_a_special_token_that_splits_is_found():
    check = linted(bytes_only(specials=("<|im_start|>",), chat_templates={"default": TEMPLATE}))
    assert "the template writes <|im_end|>, which is no token here but 10" in check.note
    tokenizer = bytes_only()
    tokenizer.backend.add_special_tokens([AddedToken("<|a|>", special=True, single_word=True)])
    tokenizer.settings.chat_templates["default"] = TEMPLATE
    tokenizer.settings = dataclasses.replace(tokenizer.settings, eos="<|none|>")
    check = linted(tokenizer)
    assert check.passed is False
    assert "the special token <|none|> splits into 8" in check.note


# Positions

FORMULA = "positions = the papers' formulas"


@pytest.mark.parametrize("name", CONFIGS)
def test_positions_are_told_for_every_scheme(name):
    found = positions(LanguageModel(small_model(CONFIGS[name])))
    assert found.words
    assert len(found.windows) == CONFIGS[name].n_layers


SCALED = {
    "linear": {"kind": "linear", "factor": 3.0},
    "ntk": {"kind": "ntk", "factor": 3.5},
    "dynamic": DYNAMIC,
    "yarn": {**YARN, "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.9},
    "llama3": {**LLAMA3, "original_max_len": 20},
    "longrope": LONGROPE,
}


def test_every_scaling_is_that_of_its_paper():
    assert SCALED.keys() == set(SCALINGS.names())
    for scaling in SCALED.values():
        lm = LanguageModel(small_model(decoder(scaling=scaling)))
        assert formula(lm).note == f"{2 * (3 if lm.model.by_length else 2)} comparisons, to 1e-12"


def test_a_wrong_frequency_is_found_and_its_layer_named():
    lm = LanguageModel(small_model(decoder(scaling=YARN), dtype=torch.float32))
    scheme = lm.model.layers[0].attention.position
    scheme._fixed = Constant(scheme.inv_freq() * torch.tensor([1.0, 1.0001], dtype=torch.float64))
    check = failing(lm)[FORMULA]
    assert check.where == "layer 0"
    assert "a frequency at 64 tokens is off by 1.0e-04" in check.note


def test_a_wrong_slope_is_found():
    lm = LanguageModel(small_model(CONFIGS["alibi"], dtype=torch.float32))
    lm.model.layers[0].attention.position.slopes[1] *= 1.01
    assert "a slope is off by 1.0e-02" in failing(lm)[FORMULA].note


def test_a_file_whose_tokenizer_does_not_say_how_it_cuts_fails_the_lint_and_is_told(tmp_path):
    """The name of its cuts in a GGUF file: the lint, the report at load and a conversion's notes say what it means."""
    tokenizer = train_bpe(["the cat sat on the mat"] * 3, vocab_size=262)
    lm = LanguageModel(onehop.build(decoder(vocab_size=tokenizer.vocab_size)).eval(), tokenizer)
    lm.save(tmp_path / "a.gguf", format="gguf")
    assert check_text.lint(onehop.load(tmp_path / "a.gguf")).passed
    data = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(data.replace(b"tokenizer.ggml.pre\x08", b"tokenizer.ggml.prf\x08"))
    said = []
    lm = onehop.load(tmp_path / "a.gguf", report=said.append)
    found = check_text.lint(lm)
    assert found.passed is False
    assert "tokenizer.ggml.pre is missing" in found.note
    assert "tokenizer.ggml.pre is missing" in said[0]
    assert any("tokenizer.ggml.pre is missing" in note for note in convert(tmp_path / "a.gguf", tmp_path / "b").notes)
