"""`onehop plan`: what is planned, from which sources, and what is refused with which words."""

import inspect
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import onehop
from onehop.base.units import human_bytes
from onehop.cli import measure as measure_file
from onehop.cli import measure_resident
from onehop.cli import plan as plan_file
from onehop.cli.main import main
from onehop.cli.measure import measure
from onehop.cli.plan_modes import HEEDS
from onehop.cli.plan_source import source
from onehop.cli.plan_tables import sheet
from onehop.config import ModelConfig
from onehop.cost import plan
from onehop.cost.devices import Device, Resident, from_dict, to_dict
from onehop.cost.scaling import law
from onehop.formats import write_config
from onehop.machine import kept
from onehop.machine.here import here
from onehop.machine.measure import Bench
from onehop.weights import save_native
from onehop.weights.gguf import save_gguf
from tests.weights.test_gguf_parts import rewritten


@pytest.fixture(autouse=True)
def unmeasured(tmp_path, monkeypatch):
    """A machine of which nothing was measured yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def said(capsys, *words):
    code = main(["plan", *words])
    out = capsys.readouterr()
    assert code == 0, out.err
    return out.out


def found(capsys, *words):
    return json.loads(said(capsys, *words, "--json"))


def refusal(capsys, *words):
    assert main(["plan", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def small(**own):
    return ModelConfig(**{
        "vocab_size": 96, "d_model": 32, "n_layers": 2, "max_len": 64, "attention": {"n_heads": 4, "n_kv_heads": 2},
        "ffn": {"kind": "gated", "d_ff": 64}, "head": {"tied": False}, **own,
    })  # fmt: skip


# What a newcomer would try


def test_a_large_model_on_one_device_reads_well(capsys):
    text = said(capsys, "llama-3-70b", "--context", "131072", "--device", "H200")
    for words in ("70,553,706,496 parameters", "42.9 GB", "serving does not fit H200", "--dtype q8_0", "tokens/s"):
        assert words in text


def test_a_budget_gives_every_law_and_their_distance(capsys):
    text = said(capsys, "--budget", "1e21flops")
    for words in ("chinchilla-tex", "replication", "kaplan", "apart by"):
        assert words in text
    rows = found(capsys, "--budget", "1e21flops")
    assert rows["outcomes"][2]["parameters"] == pytest.approx(law("replication").optimum(1e21)[0])


def test_without_arguments_it_describes_the_machine(capsys):
    text = said(capsys)
    assert f"{here(cards=False).cores} cores" in text
    assert "not measured yet: onehop plan --measure" in text
    assert {row["name"] for row in found(capsys)["devices"]} >= {"H100", "H200", "A100", "B200", "L40S", "RTX 4090"}


def test_what_if_what_fits_and_a_sweep(capsys, tmp_path):
    assert "multi-query attention" in said(capsys, "llama-3-8b", "--what-if")
    assert "longest text" in said(capsys, "llama-3-8b", "--what-fits", "--device", "RTX4090")
    rows = found(capsys, "llama-3-8b", "--sweep", "model.attention.n_kv_heads=1,2,4,8,32", "--out", "kv.png")["rows"]
    assert [row["value"] for row in rows] == ["1", "2", "4", "8", "32"]
    cache = [row["kv_bytes_per_token"] for row in rows]
    assert cache == [cache[0] * n for n in (1, 2, 4, 8, 32)]
    assert (tmp_path / "kv.png").read_bytes().startswith(b"\x89PNG")


def test_what_if_begins_with_what_plan_says(capsys):
    """Also on a machine whose speed was not measured: it is a CPU all the same."""
    memory = found(capsys, "gpt2")["memory"]
    first = found(capsys, "gpt2", "--what-if")["what_if"][0]
    swept = found(capsys, "gpt2", "--sweep", "batch=1")["rows"][0]
    for row in (first, swept):
        assert row["training_bytes"] == memory["training_bytes"]
        assert row["inference_bytes"] == memory["inference_bytes"]
        assert row["decode_tokens_per_s"] is None


def test_an_option_can_be_swept_too(capsys):
    rows = found(capsys, "gpt2", "--sweep", "batch=1,4", "--device", "H100")["rows"]
    assert rows[1]["latency_s"] > rows[0]["latency_s"]
    rows = found(capsys, "gpt2", "--sweep", "train.micro_batch=1,4")["rows"]
    assert rows[1]["training_bytes"] > rows[0]["training_bytes"]


def test_it_answers_without_torch():
    code = (
        "import sys; from onehop.cli.main import main; main(['plan', 'llama-3-8b', '--what-if']); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["llama-3-70b", "--context", "131072", "--device", "H200"],
        ["mixtral-8x7b", "--what-if", "--device", "H200"],
        ["mixtral-8x7b", "--sweep", "model.attention.n_kv_heads=1,8", "--device", "H200"],
        ["llama-3-8b", "--what-fits", "--device", "RTX4090"],
        ["--budget", "5000usd", "--price", "2", "--device", "H100"],
    ],
    ids=" ".join,
)
def test_what_is_told_fits_100_columns_of_a_terminal(capsys, words):
    lines = said(capsys, *words).splitlines()
    assert [line for line in lines if len(line.rstrip()) > 100] == []


def test_a_narrow_terminal_cuts_no_figure():
    table = sheet("what", "memory", rows=[("a long name of a change", "107 GB")])
    with (console := Console(width=16, file=io.StringIO())).capture() as shown:
        console.print(table)
    assert "107 GB" in shown.get()
    assert "…" not in shown.get()


# Sources


def test_presets_take_keys(capsys):
    more = found(capsys, "gpt2", "model.n_layers=24", "train.optimizer=muon")
    assert more["params"]["total"] == plan(source("gpt2", ["model.n_layers=24"]).config).parameters.total
    assert more["asked"]["optimizer"] == "muon"


def test_steps_of_a_preset_are_tokens(capsys):
    asked = found(capsys, "gpt2", "train.steps=10", "train.context=128", "train.batch_size=4")["asked"]
    assert asked["tokens"] == 10 * 128 * 4


def test_a_recipe_says_how_it_trains(capsys):
    recipe = onehop.config.read("quickstart").recipe
    asked = found(capsys, "quickstart", "train.steps=10")["asked"]
    assert (asked["train_rows"], asked["train_context"]) == (recipe.train.batch_size, recipe.train.context)
    assert asked["tokens"] == 10 * recipe.train.batch_size * recipe.train.context
    assert "vocab_size=1280: data.vocab_size" in said(capsys, "quickstart")


def test_a_recipe_that_goes_on_from_a_model_has_its_shape_and_says_what_is_left_out(capsys, tmp_path):
    save_native(onehop.build(small()), tmp_path / "base")
    (tmp_path / "more.toml").write_text(
        'data.files = ["my.txt"]\ntrain = {steps = 9, batch_size = 2}\ntune = {init = "base", lora = {rank = 4}}\n'
    )
    told = said(capsys, str(tmp_path / "more.toml"))
    assert f"{plan(small()).parameters.total:,} parameters" in told
    assert "tune.lora is left out: training is planned as if every weight learned" in told


def test_every_layout_of_a_model_is_read_by_its_config_alone(capsys, tmp_path):
    config = small()
    model = onehop.build(config)
    native = tmp_path / "native"
    save_native(model, native)
    (native / "model.safetensors").unlink()
    hugging = tmp_path / "hf"
    hugging.mkdir()
    (hugging / "config.json").write_text(json.dumps({**write_config(config), "torch_dtype": "bfloat16"}))
    (tmp_path / "other.json").write_text((hugging / "config.json").read_text())
    total = plan(config).parameters.total
    for place in (native, hugging, hugging / "config.json", tmp_path / "other.json"):
        assert found(capsys, str(place))["params"]["total"] == total, place


def test_of_a_gguf_file_the_weights_are_as_large_as_they_lie_there(capsys, tmp_path):
    config = small()
    save_gguf(onehop.build(config), tmp_path / "m.gguf", dtype="float16")
    file = found(capsys, str(tmp_path / "m.gguf"))
    assert file["params"]["total"] == plan(config).parameters.total
    vectors = sum(w.size for w in plan(config).weights if len(w.shape) == 1)
    stored = 2 * (file["params"]["total"] - vectors) + 4 * vectors
    assert file["memory"]["inference"]["weights"] == stored
    asked = found(capsys, str(tmp_path / "m.gguf"), "--dtype", "float32")
    assert asked["memory"]["inference"]["weights"] == 4 * file["params"]["total"]


def test_of_a_folder_of_gguf_files_the_one_that_would_be_loaded_is_planned(capsys, tmp_path):
    """By preference, by its kind, and where one model lies in several parts."""
    model, files = onehop.build(small()), tmp_path / "files"
    files.mkdir()
    for dtype in ("float32", "q8_0"):
        save_gguf(model, files / f"m-{dtype}.gguf", dtype=dtype)
    asked = {name: found(capsys, name) for name in ("files", "files:q8_0", "files:F32")}
    nbytes = human_bytes(4 * asked["files"]["params"]["total"])
    loaded = f"onehop loads these weights in float32, where they take {nbytes}"
    assert asked["files"]["notes"] == ["taking m-q8_0.gguf", loaded]
    weights = {name: one["memory"]["inference"]["weights"] for name, one in asked.items()}
    assert weights["files"] == weights["files:q8_0"] < weights["files:F32"]
    assert "files holds no GGUF file of the kind Q4_K_M. There are: " in refusal(capsys, "files:Q4_K_M")
    (files / "m-q8_0.gguf").unlink()
    rewritten(files / "m-float32.gguf", files / "p.gguf", split_max_tensors=8)
    (files / "m-float32.gguf").unlink()
    assert len(list(files.iterdir())) > 1
    assert found(capsys, "files")["memory"]["inference"]["weights"] == weights["files:F32"]


def test_a_model_that_ships_is_found_by_name(capsys):
    assert found(capsys, "fables-tiny")["source"] == "onehop"


# Refusals


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["lama-3-8b"], "file or hub name like 'org/model'. Did you mean llama-3-8b?"),
        (["gpt2", "--device", "H2OO"], "the device 'H2OO' is not in the table."),
        (["gpt2", "--context", "-5"], "context=-5: needs 1 or more."),
        (["gpt2", "--batch", "0"], "batch=0: needs 1 or more."),
        (["gpt2", "--dtype", "bf16"], "dtype 'bf16' does not exist. Did you mean bfloat16?"),
        (["gpt2", "--cache-dtype", "q4_k"], "a cache cannot hold 'q4_k'."),
        (["gpt2", "model.d_model=-3"], "d_model=-3"),
        (["gpt2", "--tokens", "nan"], "tokens=nan: needs 1 or more."),
        (["gpt2", "--tokens", "inf"], "tokens is above 9007199254740992, to which a plan counts. Ask for less."),
        (["gpt2", "model.n_layers=1000000000"], "n_layers=1000000000 is more than a plan lists one by one."),
        (["gpt2", "model.blocks=5"], "model.blocks=5: needs a table for each block"),
        (["gpt2", "train.micro_batch=0"], "train.micro_batch=0"),
        (["gpt2", "train.steps=9"], "train.steps says how many tokens there are only with train.context"),
        (["org/model:Q4_K_M"], "org/model:Q4_K_M is a GGUF file on the hub"),
        (["nowhere.gguf"], "nowhere.gguf is not there. Check the path."),
        (["gpt2", "model.n_layer=3"], "Did you mean n_layers?"),
        (["gpt2", "data.seed=3"], "data.… decides nothing that is planned here."),
        (["gpt2", "train.rows=3"], "rows does not exist."),
        (["gpt2", "--sweep", "model.n_layers"], "write key=value,value,…"),
        (["gpt2", "--sweep", "batch=1,x"], "--sweep batch=x: needs a whole number"),
        (["gpt2", "--sweep", "batch=1,,2"], "--sweep 'batch=1,,2': write key=value,value,…"),
        (["gpt2", "--sweep", "tokens=nan"], "--sweep tokens=nan: tokens=nan: needs 1 or more."),
        (["gpt2", "--sweep", "batch=1", "--out", ""], "Give a name that ends in .png."),
        (["gpt2", "--sweep", "batch=1", "--out", "plot.svg"], "--out plot.svg: the plot is a PNG."),
        (["gpt2", "--sweep", "layers=1"], "layers is no key."),
        (["gpt2", "--sweep", "model.attention.n_kv_heads=5"], "cannot share n_heads=12"),
        (["shakespeare-char"], "Add model.vocab_size=…"),
        (["--budget", "lots"], "--budget 'lots': write a number and flops, gpu-hours or usd"),
        (["--budget=-1e21flops"], "--budget '-1e21flops'"),
        (["--budget", "1.2.3flops"], "--budget '1.2.3flops': write a number and flops"),
        (["--budget", ".flops"], "--budget '.flops': write a number and flops"),
        (["--budget", "7flops"], "--budget '7flops' is 7 FLOPs: the laws are asked for 1e+09 to 1e+40."),
        (["--budget", "1e300flops"], "is 1e+300 FLOPs"),
        (["--budget", "1e21flops", "--serve", "nan"], "--serve nan: needs a number of tokens above 0."),
        (["--budget", "1e21flops", "--serve", "inf"], "--serve inf: a plan counts up to 9007199254740992 tokens."),
        (["--budget", "1e21flops", "--serve", "0"], "--serve 0: needs a number of tokens above 0."),
        (["--budget", "1e21flops", "--serve", "1e308"], "--serve 1e+308: a plan counts up to 9007199254740992 tokens."),
        (["--budget", "1e40flops", "--serve", "1e30"], "--serve 1e+30: a plan counts up to 9007199254740992 tokens."),
        (["--budget", "10gpu-hours"], "needs --device"),
        (["--budget", "10usd", "--device", "H100", "--price", "inf"], "--price inf: a number above 0, what an hour of"),
        (["--budget", "10usd", "--device", "H100", "--price", "nan"], "--price nan: a number above 0, what an hour of"),
        (["--budget", "10usd", "--device", "H100", "--price", "1e-320"], "is inf FLOPs"),
        (["--budget", "10usd", "--device", "H100"], "needs --price"),
        (["--budget", "10h", "--device", "H100", "--mfu", "40"], "--mfu 40.0: a share of the peak"),
        (["--fit-law", "nowhere.jsonl"], "nowhere.jsonl is not there."),
        (["--fit-law", os.devnull], f"{os.devnull} is no ordinary file. Give the metrics.jsonl of runs"),
    ],
)  # fmt: skip
def test_nonsense_is_one_line(capsys, words, text):
    assert text in refusal(capsys, *words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gpt2", "--budget", "1e21flops"], "a model does nothing beside --budget."),
        (["--budget", "1e21flops", "--what-if"], "--what-if does nothing beside --budget."),
        (["--budget", "1e21flops", "--mfu", "0.5"], "--mfu changes nothing for a budget in flops."),
        (["--budget", "1e21flops", "--device", "H100"], "--device changes nothing for a budget in flops."),
        (
            ["--budget", "9gpu-hours", "--device", "H100", "--price", "2"],
            "--price changes nothing for a budget in hours.",
        ),
        (["gpt2", "--what-if", "--what-fits"], "--what-if does nothing beside --what-fits."),
        (["gpt2", "--what-fits", "--batch", "2"], "--batch does nothing beside --what-fits."),
        (["gpt2", "--what-if", "--sweep", "batch=1,2"], "--what-if does nothing beside --sweep."),
        (["gpt2", "--sweep", "context=1,2", "--context", "3"], "--sweep context takes its values in turn"),
        (["gpt2", "--sweep", "cache-dtype=int8", "--cache-dtype", "int8"], "--sweep cache-dtype takes its values"),
        (["gpt2", "model.n_layers=3", "--sweep", "model.n_layers=1,2"], "--sweep model.n_layers takes its values"),
        (["gpt2", "--out", "a.png"], "--out does nothing without --sweep."),
        (["gpt2", "--serve", "1e12"], "--serve does nothing without --budget."),
        (["--what-if"], "--what-if needs a model, for example onehop plan quickstart --what-if"),
        (["--context", "5"], "--context needs a model"),
        (["--fit-law", "points.jsonl", "--device", "H100"], "--device does nothing beside --fit-law."),
        (["--measure", "gpt2"], "a model does nothing beside --measure."),
    ],
)
def test_an_option_that_the_question_does_not_heed_is_refused(capsys, words, text):
    assert text in refusal(capsys, *words)


def test_every_option_is_heeded_by_some_question_and_every_question_by_its_name():
    """A new option of the command has to be given its place in the table."""
    options = set(inspect.signature(plan_file.plan).parameters) - {"json"}
    assert options == set().union(*HEEDS.values()) | (set(HEEDS) - {"plan", "machine"})


def test_a_config_that_lacks_a_key_names_it(capsys, tmp_path):
    raw = write_config(small())
    del raw["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert "hidden_size" in refusal(capsys, "config.json")


# This machine


def test_a_measured_machine_tells_times(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(measure_file, "has_native_bf16", lambda where: False)
    monkeypatch.setattr(measure_file, "LAYERS", 2)
    bench = Bench(tries=1, shortest=1e-4)
    measured = measure(here(cards=False), bench=bench, report=lambda line: None, small=16)
    assert measured.bandwidth > 0
    assert all(rate > 0 for rate in measured.flops.values())
    assert all(s > 0 for by_type in measured.pace.per_layer.values() for s in by_type.values())
    assert {phase for phase, by_type in measured.pace.whole.items() if by_type["float32"] > 0} == set(
        measured.pace.per_layer
    )
    assert from_dict(json.loads(json.dumps(to_dict(measured)))) == measured
    kept.keep(to_dict(measured))
    assert found(capsys, "tiny")["time"]["decode_tokens_per_s"] > 0
    assert "this machine: expected" in said(capsys, "tiny")
    assert "memory is read at" in said(capsys)


def test_a_measured_machine_tells_what_processes_hold(capsys):
    machine = Device("this machine", 8e9, 1e10, {"float32": 1e11}, "a test, measured", "cpu")
    assert "resident" not in said(capsys, "tiny")
    held = {"training": Resident(base=4e8, share=0.1), "inference": Resident(base=3e8, share=0.6)}
    kept.keep(to_dict(replace(machine, resident=held)))
    memory = found(capsys, "tiny")["memory"]
    for phase, one in held.items():
        others = memory[phase]["live" if phase == "training" else "prepared"]
        assert memory[f"{phase}_resident_bytes"] == one.base + memory[phase]["live"] + one.share * others
        assert others > 0
        told = " ".join(said(capsys, "tiny").split())
        assert f"resident, as measured here {human_bytes(memory[f'{phase}_resident_bytes'])}" in told
    assert not [key for key in found(capsys, "tiny", "--device", "H100")["memory"] if "resident" in key]
    assert "a process holds beside its tensors, training: 400 MB and 10% of them" in said(capsys)


LINE = {"base": 1.0, "share": 1.0}


@pytest.mark.parametrize(
    "held",
    [
        {"training": {"base": 1.0}, "inference": LINE}, {"training": {**LINE, "base": -1.0}, "inference": LINE}, 3,
        {"training": LINE}, {"training": LINE, "inference": {**LINE, "share": 1e299}}, {"bogus": LINE},
    ],
)  # fmt: skip
def test_a_measurement_with_damaged_memory_is_refused(capsys, held):
    machine = Device("this machine", 8e9, 1e10, {"float32": 1e11}, "a test, measured", "cpu")
    kept.keep({**to_dict(machine), "resident": held})
    assert "Repeat onehop plan --measure" in refusal(capsys, "tiny")


@pytest.mark.parametrize("text", ['{"name": ', "null", "[]", "[" * 100_000, "{}"])
def test_a_damaged_measurement_is_refused(capsys, text):
    kept.keep({})
    kept.place().write_text(text)
    assert "Repeat onehop plan --measure" in refusal(capsys, "tiny")


@pytest.mark.parametrize("own", [{"flops": {}}, {"bandwidth": 5e-324}, {"bandwidth": 1e299}])
def test_a_measurement_of_no_machine_is_refused(capsys, own):
    kept.keep({**to_dict(Device("this machine", 8e9, 1e10, {"float32": 1e11}, "measured", "cpu")), **own})
    assert "Repeat onehop plan --measure" in refusal(capsys, "gpt2")


def test_a_place_that_cannot_keep_a_measurement_is_told_before_it_is_made(capsys, tmp_path, monkeypatch):
    (tmp_path / ".cache").write_text("no folder")
    monkeypatch.setattr(measure_resident, "resident", lambda report: pytest.fail("measured first"))
    assert ".cache" in refusal(capsys, "--measure")


def test_names_are_near_whatever_their_case(capsys):
    assert "Did you mean gpt2?" in refusal(capsys, "GPT2x")
    asked = found(capsys, "tiny", "--device", "NVIDIA GeForce RTX 4090")
    assert asked["device"]["name"] == "RTX 4090"


def test_a_recipe_that_has_a_presets_name_can_be_planned_as_the_note_says(capsys):
    (recipe,) = re.findall(r"onehop plan (\S+)\)", said(capsys, "tiny"))
    assert found(capsys, recipe)["source"] == "recipe"


@pytest.mark.parametrize("words", [("",), ("gpt2", "--cache-dtype", "")])
def test_empty_words_are_refused(capsys, words):
    assert re.search("Give a|cannot hold ''", refusal(capsys, *words))


def test_a_preset_is_planned_without_the_tables_of_file_formats():
    look = "print([name for name in sys.modules if name.startswith(('torch', 'numpy', 'onehop.formats'))])"
    probe = f"import sys; from onehop.cli.main import main; main(['plan', 'gpt2', '--json']); {look}"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_place_for_json_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "onehop", "plan", "gpt2", "--json"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_this_machine_has_cores_and_memory():
    machine = here(cards=False)
    assert machine.cores >= 1
    assert machine.memory > 1e8
    assert math.isfinite(machine.memory)


def test_a_hub_name_that_cannot_be_fetched_is_one_line(capsys, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RevisionNotFoundError

    class Response:
        headers, request = {}, None

    for error, text in (
        (LocalEntryNotFoundError("offline"), "it is not in the local cache"),
        (OfflineModeIsEnabled("offline"), "it is not in the local cache"),
        (RevisionNotFoundError("404", response=Response()), "it has no revision v9. Leave @v9 out"),
    ):

        def unreachable(*words, error=error, **options):
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
        assert f"its config cannot be fetched: {text}" in refusal(capsys, "someone/something@v9")


def test_of_a_hub_model_the_config_alone_is_fetched(capsys, monkeypatch, tmp_path):
    import huggingface_hub

    (tmp_path / "config.json").write_text(json.dumps(write_config(small())))
    asked = []

    def fetched(name, file, revision=None):
        asked.append((name, file, revision))
        return str(tmp_path / "config.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetched)
    assert found(capsys, "someone/something@main")["source"] == "hub"
    assert asked == [("someone/something", "config.json", "main")]
