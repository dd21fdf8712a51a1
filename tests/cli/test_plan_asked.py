"""What is asked of `onehop plan` beside the model: contexts, tokens, rows of training, the bytes of a file."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import onehop
from onehop.base.shipped import shipped
from onehop.base.units import human_bytes
from onehop.cli import plan as plan_file
from onehop.config import read, to_toml
from onehop.cost import plan
from onehop.cost.devices import Device, Resident, to_dict
from onehop.cost.scaling import law
from onehop.formats import write_config
from onehop.machine import kept
from onehop.machine.here import has_native_bf16, multiplies_bf16
from onehop.training import setup
from onehop.weights import load_native, save_native
from onehop.weights.gguf import load_gguf, save_gguf
from tests.cli.test_plan import found, refusal, said, small


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home of one's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


# Tokens and rows of training


def test_each_row_of_a_sweep_over_tokens_has_its_own(capsys):
    rows = found(capsys, "llama-3-8b", "--sweep", "tokens=1e9,1e12")["rows"]
    active = plan("llama-3-8b").parameters.active
    assert [row["loss"] for row in rows] == pytest.approx([law("replication").loss(active, d) for d in (1e9, 1e12)])
    rows = found(capsys, "llama-3-8b", "--sweep", "batch=1,2", "--tokens", "1e12")["rows"]
    assert rows[0]["loss"] == rows[1]["loss"]


def test_a_sweep_and_a_what_if_train_in_the_rows_that_the_plan_has(capsys):
    rows = found(capsys, "gpt2", "--sweep", "train.context=128,1024")["rows"]
    told = [found(capsys, "gpt2", f"train.context={n}")["flops"]["train_per_token"] for n in (128, 1024)]
    assert [row["train_flops_per_token"] for row in rows] == told
    assert told[0] < told[1]
    first = found(capsys, "gpt2", "train.context=128", "--what-if")["what_if"][0]
    assert first["train_flops_per_token"] == told[0]


def test_a_key_for_a_run_changes_that_key_alone(capsys, tmp_path):
    given = ["model.vocab_size=96", "train.steps=9", "train.batch_size=8", "train.micro_batch=2", "train.context=32"]
    recipe = read("tiny", [*given, "train.recompute=block"]).recipe
    save_native(onehop.build(recipe.model), tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(to_toml(recipe))
    before = found(capsys, "run")["asked"]
    after = found(capsys, "run", "train.optimizer=muon")["asked"]
    assert (before["train_rows"], before["micro_batches"], before["train_context"]) == (2, 4, 32)
    assert after == {**before, "optimizer": "muon"}
    assert found(capsys, "run", "train.steps=3")["asked"] == {**before, "tokens": 3 * 8 * 32}
    assert "train.batch_size" in refusal(capsys, "run", "train.batch_size=3")


@pytest.mark.parametrize(("native", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_training_is_planned_in_the_type_that_this_machine_would_take(capsys, monkeypatch, native, precision):
    monkeypatch.setattr(plan_file, "has_native_bf16", lambda: native)
    assert found(capsys, "tiny")["asked"]["precision"] == precision
    assert found(capsys, "tiny", "train.precision=float16")["asked"]["precision"] == "float16"
    assert found(capsys, "tiny", "--device", "H100")["asked"]["precision"] == "bfloat16"


def test_the_system_says_of_this_processor_what_torch_says():
    assert has_native_bf16() is setup.has_native_bf16(torch.device("cpu"))


@pytest.mark.parametrize(
    ("maker", "flags", "native"),
    [
        ("GenuineIntel", "avx512f avx512_bf16 amx_tile", True), ("GenuineIntel", "avx512f avx512_bf16", False),
        ("AuthenticAMD", "avx512f avx512_bf16", True), ("AuthenticAMD", "avx2", False), ("ARM", "", False),
    ],
)  # fmt: skip
def test_a_processor_multiplies_bfloat16_by_its_flags(maker, flags, native):
    assert multiplies_bf16(f"vendor_id\t: {maker}\nflags\t\t: fpu {flags}\nbugs\t: x\n") is native


# Stored weights


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_folder_is_planned_in_the_type_that_its_weights_have(capsys, tmp_path, dtype):
    """onehop generate loads them so: a run's config.json names no type."""
    config = small()
    save_native(onehop.build(config), tmp_path / "run", dtype=dtype)
    whole = found(capsys, "run")
    assert whole["asked"]["dtype"] == dtype
    assert str(load_native(tmp_path / "run").embed.tokens.weight.dtype) == f"torch.{dtype}"
    assert f"weights in {dtype}" in said(capsys, "run")
    assert found(capsys, "run", "--dtype", "q8_0")["asked"]["dtype"] == "q8_0"


def test_weights_that_cannot_be_read_leave_the_type_to_the_config(capsys, tmp_path):
    save_native(onehop.build(small()), tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"half of it")
    assert found(capsys, "run")["asked"]["dtype"] == "bfloat16"


def test_a_model_that_ships_is_planned_in_the_type_of_its_weights_without_torch():
    code = "import sys; from onehop.cli.main import main; main(['plan', 'fables-tiny']); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"
    held = load_native(shipped("models", "fables-tiny")).embed.tokens.weight.dtype
    assert f"weights in {str(held).removeprefix('torch.')}" in out


def test_a_gguf_file_is_read_as_fast_as_its_own_bytes_allow(capsys, tmp_path):
    config = small(d_model=64, ffn={"kind": "gated", "d_ff": 256})
    save_gguf(onehop.build(config), tmp_path / "m.gguf", dtype="q8_0")
    words = [str(tmp_path / "m.gguf"), "--context", "8", "--device", "H100"]
    whole = found(capsys, *words)
    asked = {dtype: found(capsys, *words, "--dtype", dtype) for dtype in ("q8_0", "bfloat16")}
    for phase in ("decode", "prefill"):
        own, eight, sixteen = (one["time"][f"{phase}_s"] for one in (whole, asked["q8_0"], asked["bfloat16"]))
        assert own == pytest.approx(eight, rel=0.15)  # vectors and the cache make the difference
        assert own < 0.75 * sixteen
    assert "weights as in the file" in said(capsys, *words)
    assert "weights in q8_0" in said(capsys, *words, "--dtype", "q8_0")
    rooms = found(capsys, words[0], "--what-fits", "--device", "H100")["fits"]
    assert rooms[0]["dtype"] == "the file's"
    assert rooms[0]["weights"] == whole["memory"]["inference"]["weights"]


@pytest.mark.parametrize(("dtype", "loads"), [("q8_0", "float32"), ("float16", "float16")])
def test_the_process_that_serves_a_gguf_file_holds_its_weights_as_they_are_loaded(capsys, tmp_path, dtype, loads):
    config = small(d_model=64, ffn={"kind": "gated", "d_ff": 256})
    save_gguf(onehop.build(config), tmp_path / "m.gguf", dtype=dtype)
    assert str(load_gguf(tmp_path / "m.gguf").embed.tokens.weight.dtype) == f"torch.{loads}"
    machine = Device("this machine", 8e9, 1e10, {"float32": 1e11}, "a test, measured", "cpu")
    held = {phase: Resident(base=3e8, share=0.6) for phase in ("training", "inference")}
    kept.keep(to_dict(replace(machine, resident=held)))
    file, same = found(capsys, "m.gguf"), found(capsys, "m.gguf", "--dtype", loads)
    unpacked = file["memory"]["inference"]["weights"] < same["memory"]["inference"]["weights"]
    assert unpacked is (dtype == "q8_0")
    assert file["memory"]["inference_resident_bytes"] == same["memory"]["inference_resident_bytes"]
    nbytes = human_bytes(4 * file["params"]["total"])
    told = [f"onehop loads these weights in float32, where they take {nbytes}"] if dtype == "q8_0" else []
    assert (file["notes"], same["notes"]) == (told, [])


def test_whether_a_model_fits_is_told_by_the_memory_of_the_process(capsys, tmp_path):
    """Where that was measured: libraries count too, and what onehop unpacks."""
    machine = Device("this machine", 1e9, 1e10, {"float32": 1e11}, "a test, measured", "cpu")
    kept.keep(to_dict(machine))
    assert found(capsys, "tiny")["fits"] == {"inference": True, "training": True}
    held = {phase: Resident(base=1e9, share=0.1) for phase in ("training", "inference")}
    kept.keep(to_dict(replace(machine, resident=held)))
    whole = found(capsys, "tiny")
    assert whole["fits"] == {"inference": False, "training": False}
    for phase in held:
        assert whole["advice"][phase]["needed"] == whole["memory"][f"{phase}_resident_bytes"]
    assert "serving does not fit this machine" in said(capsys, "tiny")
    assert {n for fit in found(capsys, "tiny", "--what-fits")["fits"] for n in fit["texts"].values()} == {0}


# Texts that a model cannot read, or was not made for


def test_no_text_is_promised_beyond_the_learned_positions(capsys):
    for room in found(capsys, "gpt2", "--what-fits", "--device", "H100")["fits"]:
        assert list(room["texts"]) == ["1024"]
        assert room["longest"] == 1024
    for words in (["--context", "131072"], ["--sweep", "context=64,131072"], ["train.context=131072"]):
        assert "this model has learned positions for 1024 tokens." in refusal(capsys, "gpt2", *words)
    assert found(capsys, "gpt2", "model.max_len=131072", "--context", "131072")["asked"]["context"] == 131072


def test_a_text_that_the_model_was_not_made_for_is_noted(capsys):
    (note,) = found(capsys, "llama-3-8b", "--context", "131072")["notes"]
    assert note == "131072 tokens are beyond max_len=8192, for which the model was made"
    assert note in said(capsys, "llama-3-8b", "--context", "131072")
    assert found(capsys, "llama-3-8b", "--context", "8192")["notes"] == []
    text = said(capsys, "llama-3-8b", "--what-fits", "--device", "H100")
    assert "the model was made for texts of 8,192 tokens at most" in text
    changes = found(capsys, "llama-3-8b", "--what-if", "--context", "16384")["what_if"]
    assert "learned positions" in [row["name"] for row in changes]


def test_notes_are_told_with_every_question(capsys):
    """Of a text beyond max_len, and of a preset's name that a recipe has too: each once, also where rows share them."""
    beyond = "131072 tokens are beyond max_len=8192, for which the model was made"
    for words in (["--what-if", "--context", "131072"], ["--sweep", "context=8192,131072"]):
        assert found(capsys, "llama-3-8b", *words)["notes"] == [beyond]
        assert f"({beyond})" in said(capsys, "llama-3-8b", *words)
    other = f"the recipe tiny is another thing: onehop plan {shipped('runs', 'tiny')}"
    for words in (["--what-if"], ["--what-fits"], ["--sweep", "batch=1,2"]):
        assert found(capsys, "tiny", *words)["notes"] == [other]
        assert said(capsys, "tiny", *words).count(f"({other})") == 1


def test_what_the_loss_means_is_told_where_there_is_one(capsys):
    assert "loss" not in said(capsys, "tiny", "--what-if")
    for words in (["--what-if"], ["--sweep", "dtype=bfloat16,q4_k"]):
        text = said(capsys, "gpt2", *words)
        assert "for the training FLOPs that the first line would take" in text
        assert "the law sees active parameters and tokens alone" in text
    assert "for the tokens of each" in said(capsys, "gpt2", "--sweep", "tokens=1e9,1e10")


def test_a_change_to_more_than_a_plan_counts_is_left_out(capsys):
    most = 2**53
    names = [row["name"] for row in found(capsys, "llama-3-8b", "--what-if", "--context", str(most))["what_if"]]
    assert "twice the context" not in names
    assert "multi-query attention" in names
    names = [row["name"] for row in found(capsys, "llama-3-8b", "--what-if", "--batch", str(most))["what_if"]]
    assert [name for name in names if "texts at once" in name] == []


def test_a_model_that_sees_both_ways_keeps_and_decodes_nothing(capsys, tmp_path):
    config = small(attention={"n_heads": 4, "sees": "all"})
    (tmp_path / "both.json").write_text(json.dumps(config.model_dump(mode="json")))
    whole = found(capsys, "both.json", "--device", "H100")
    assert (whole["kv_cache"]["bytes"], whole["memory"]["inference"]["kv_cache"]) == (0, 0)
    assert [key for part in ("time", "flops") for key in whole[part] if "decode" in key] == []
    text = said(capsys, "both.json", "--device", "H100")
    assert "no KV cache" in text
    assert "decoding" not in text
    assert found(capsys, "both.json", "--device", "H100", "--what-if")["what_if"][0]["decode_tokens_per_s"] is None


# Numbers beyond all measure

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--context", HUGE], "context is above 9007199254740992, to which a plan counts."),
        (["--batch", HUGE], "batch is above"),
        (["--context", HUGE, "--what-if"], "context is above"),
        (["--sweep", f"batch=1,{HUGE}"], "batch is above"),
        (["model.vocab_size=" + HUGE], "the model has more than 9007199254740992 parameters"),
        (["model.max_len=" + HUGE], "max_len is above"),
        (["train.micro_batch=" + HUGE], "train_rows is above"),
        (["train.context=" + HUGE], "train_context is above"),
        (["train.context=128", "train.steps=" + HUGE], "tokens is above"),
    ],
    ids=lambda words: " ".join(words).replace(HUGE, "10^400") if isinstance(words, list) else "",
)
def test_a_number_of_400_digits_is_refused(capsys, words, text):
    assert text in refusal(capsys, "llama-3-8b", *words)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads"])
def test_so_is_a_config_that_holds_one(capsys, tmp_path, key):
    (tmp_path / "config.json").write_text(json.dumps({**write_config(small()), key: int(HUGE)}))
    assert refusal(capsys, "config.json")


# Attention's traffic


def test_where_tiles_never_save_half_it_says_so(capsys):
    wide = ["gpt2", "model.attention.n_heads=2", "model.attention.n_kv_heads=2", "model.attention.d_head=384"]
    assert found(capsys, *wide)["attention"]["crossover_tokens"] is None
    assert "by tiles (at no length twice as much)" in said(capsys, *wide)
    assert found(capsys, "gpt2")["attention"]["crossover_tokens"] < 128
