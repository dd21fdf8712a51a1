"""What the texts say is so: their files exist, their commands and snippets run, their figures are the measured ones."""

import contextlib
import io
import json
import math
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from onehop.cli.main import main
from onehop.config import read
from onehop.config.named import presets
from onehop.floors import FLOORS, TORCH_FREE
from onehop.training import session
from tests.training.small_runs import sentences

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
TEXTS = ["README.md", "CONTRIBUTING.md", "tests/SKIPS.md"]
TEXTS += [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = (
    "out/",
    "my",
    "path.py",
    "org/",
    "checkpoints/",
    "comparison.",
    "recipe.toml",
)  # what the reader's own commands write or read, and stand-ins for any name
COMMANDS = [line for line in README.splitlines() if line.startswith("onehop ")]
SHORT = [
    "train.steps=2",
    "train.batch_size=2",
    "train.eval_rows=2",
    "train.sample_tokens=4",
    "train.device=cpu",
    "train.measure_peak=no",
]
SMALL = ["model.d_model=16", "model.attention.position.width=2", "model.n_layers=1", "model.ffn.d_ff=16", *SHORT]

# a piece of a command -> what it has to say
SAYS = {
    "data.files=my_texts/": "trained 2 steps",
    "--explain": "model.attention.n_kv_heads",
    "--copy": "wrote my.toml",
    'out/mine "Once upon a time"': "Once upon a time",
    "--alternatives": "rivals",
    "onehop eval": "bits per byte",
    "onehop verify": "18 of 18 checks hold",
    "--device H200": "70,553,706,496 parameters",
    "--budget": "replication",
    "onehop convert": "wrote mine.gguf (gguf, q8_0",
    "onehop list  ": "fables-tiny",
    "onehop list keys": "train.lr ",
}


# What is named


@pytest.mark.parametrize("text", TEXTS)
def test_every_file_that_a_text_names_exists(text):
    found = (ROOT / text).read_text()
    prose = re.sub(r"^```.*?^```", "", found, flags=re.MULTILINE | re.DOTALL)
    linked = [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not target.startswith(("#", "https://"))]
    assert [target for target in linked if not ((ROOT / text).parent / target).exists()] == []
    named = re.findall(r"`((?:[\w.-]+/)+[\w.*-]*|[\w-]+\.(?:md|toml|txt|py))(?:::?[\w.]+)?`", prose)
    missing = [name for name in named if not name.startswith(WRITTEN) and not (list(ROOT.glob(name)) or inside(name))]
    assert missing == []


def inside(name):
    """Whether a name is that of a file in the package, as `config/read.py` is."""
    return (ROOT / "onehop" / name).exists()


def test_the_readme_leads_to_every_page():
    assert {text for text in TEXTS if text.startswith("docs/")} <= set(re.findall(r"\]\((docs/\w+\.md)\)", README))


def test_the_recipes_of_the_text_on_tuning_are_recipes(tmp_path):
    blocks = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/tuning.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        (tmp_path / "recipe.toml").write_text(block)
        loaded = read(tmp_path / "recipe.toml", model_of=lambda init: presets["tiny"])
        assert loaded.recipe.model == presets["tiny"]
        assert loaded.origins["model.d_model"] == "tune.init MODEL"


def test_a_name_of_no_file_is_seen():
    assert not inside("parts/no_such_part.py")
    assert inside("parts/attention.py")


def test_make_has_every_target_that_a_text_names():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in TEXTS:
        found = (ROOT / text).read_text()
        named = re.findall(r"(?:^|`)make ([a-z-]+)", found, re.MULTILINE)
        assert targets >= set(named), text
    assert {"demo", "test"} <= set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))


def test_the_table_of_floors_is_that_of_the_code():
    rows = re.findall(r"^\| (\d) \| (.+?) \| ", README, re.MULTILINE)
    shown = {package: int(floor) for floor, packages in rows for package in re.findall(r"`(\w+)`", packages)}
    there = {path.parent.name for path in (ROOT / "onehop").glob("*/__init__.py")}
    assert shown == {package: floor for package, floor in FLOORS.items() if package in there}
    free = re.search(r"^(.+) never load torch", README, re.MULTILINE)[1]
    assert set(re.findall(r"`(\w+)`", free)) == TORCH_FREE & there


def test_the_extras_that_are_named_can_be_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"pip install '\.\[(\w+)\]'", README)
    assert named
    assert set(named) <= extras.keys()


def test_the_keys_that_are_named_can_be_set():
    named = re.findall(r"`((?:train|model|data)\.[\w.]+=\S+?)`", README)
    assert len(named) >= 2
    read("quickstart", named)


# What is shown


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each command of README prints, run one after the other in one folder; training is cut short."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_texts").mkdir()
    (folder / "my_texts" / "a.txt").write_text(sentences(400))
    (folder / "held_out.txt").write_text(sentences(40, seed=1))
    found = {}
    with contextlib.chdir(folder):
        for line in COMMANDS:
            words = shlex.split(line, comments=True)[1:]
            trains = words[0] == "train" and not {"--explain", "--copy"} & set(words)
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = main(words + (SMALL if trains else []))
            found[line] = code, out.getvalue()
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_does_what_is_said(line, said):
    code, text = said[line]
    assert code == 0, text
    (words,) = [words for piece, words in SAYS.items() if piece in line]
    assert words in text


def test_the_commands_of_the_text_on_the_planner_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [line for line in (ROOT / "docs/planner.md").read_text().splitlines() if line.startswith("onehop plan")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if not {"--measure", "--fit-law"} & set(words):  # one takes a minute, one wants runs
            assert main(words) == 0, (line, capsys.readouterr().err)


def test_the_snippet_of_the_readme_runs_as_it_stands(monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(session, "QUESTIONS", 4)  # the only thing that is shortened: its runs have 20 steps
    names = {}
    exec(code, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(", a ")  # goes on with "Once upon a time"
    assert [line.split()[0] for line in printed[-20:]] == [str(n) for n in range(1, 21)]
    assert names["run"].step == names["step"].step == 20
    assert isinstance(names["model"], torch.nn.Module)
    assert names["y"].shape == names["q"].shape == (1, 5, 4, 16)


# What was measured


TRAINED = (  # the columns of the table
    "onehop, GPT-2's parts", "plain", "GPT2LMHeadModel",
    "onehop, Llama's parts", "LlamaForCausalLM", "LitGPT", "x-transformers",
)  # fmt: skip


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_figures_of_the_readme_are_those_of_the_results():
    expected = []
    for size in results("train_cpu")["sizes"].values():
        for precision in ("float32", "bfloat16 autocast"):
            rates = size[precision]["tokens_per_second"]
            expected.append("".join(f"| {rates[who]:.0f} " for who in TRAINED))
    for result in results("decode_cpu")["results"]:
        speed = result["tokens_per_s"]
        expected.append(f"| {speed['onehop']} | {speed['transformers']} | {result['ratio']:.2f} × |")
    seconds = {
        (row["kind"], row["pass"]): row["seconds"] for row in results("attention_cpu")["speed"] if row["t"] == 4096
    }
    kinds = ("tiled", "sdpa, bias given", "sdpa, bias built")
    expected += [f"| {seconds[kind, 'forward']:.2f} s | {seconds[kind, 'both']:.2f} s |" for kind in kinds]
    memory = {row["t"]: row["bytes"] / 2**20 for row in results("attention_cpu")["memory"] if row["kind"] == "tiled"}
    expected.append(f"({memory[2048]:.0f} MiB at 2k tokens, {memory[32768]:.0f} MiB at 32k")
    reached = results("time_to_loss")["reached"].values()
    first, *ours = ([goals[goal] for goals in reached] for goal in ("1.919", "1.8"))
    expected.append(f"1.919 after {min(first[1:]):.0f} to {max(first[1:]):.0f} seconds, and 1.80 after")
    expected.append(f"{min(ours[0][1:]):.0f} to {max(ours[0][1:]):.0f};")
    assert [text for text in expected if text not in README] == []


def test_the_planners_errors_are_those_of_the_results():
    found, text = results("plan_accuracy"), " ".join(README.split())
    memory = max(abs(row["error"]) for row in found["training"] + found["inference"])
    times = max(abs(row["error"]) for row in found["time"]["rows"])
    held = max(abs(row["error"]) for row in found["resident"])
    assert len(found["resident"]) == 2 * 7
    assert f"holds in memory was off by at most {math.ceil(100 * held)} % over seven models" in text
    models = len(found["time"]["rows"]) // 3
    assert len(found["training"]) == 16
    assert f"off by at most {math.ceil(100 * memory)} % from what was tracked over sixteen models" in text
    assert models == 8
    assert f"decoding eight models were off by at most {math.ceil(100 * times)} %, in float32 on two cores" in text


XEON = {  # the rows of the table, and their names there
    "onehop, GPT-2's parts": None, "onehop, GPT-2's parts, compiled": None, "plain": "nanoGPT's arithmetic",
    "plain, compiled": "nanoGPT's arithmetic, compiled", "GPT2LMHeadModel": "transformers' GPT-2",
    "onehop, Llama's parts": None, "onehop, Llama's parts, compiled": None, "LlamaForCausalLM": "transformers' Llama",
    "LitGPT": None, "LitGPT, compiled": None, "x-transformers": None,
}  # fmt: skip


def test_where_there_is_no_lead_the_page_says_so():
    decoding, text = results("decode_cpu_xeon"), " ".join(README.split())
    speed, half = (decoding["decoding_tokens_per_second"][dtype] for dtype in ("float32", "bfloat16"))
    ratios_of = [decoding["ratio"][f"decoding, {dtype}"] for dtype in ("float32", "bfloat16")]
    told = f"{speed['onehop']} tokens per second against {speed['transformers']}"
    assert f"{told} ({ratios_of[0]:.2f} ×" in text
    assert f"in bfloat16 {half['onehop']} against {half['transformers']} ({ratios_of[1]:.2f} ×)" in text
    sizes = [size["float32"] for size in results("train_cpu_xeon")["sizes"].values()]
    for who, name in XEON.items():
        cells = " | ".join(f"{size['tokens_per_second'][who]:.0f}" for size in sizes)
        assert f"| {name or who} | {cells} |" in README

    def ratios(one, other):
        a, b, c = (f"{size['ahead'][one][other]:.2f}" for size in sizes)
        return f"{a}, {b} and {c} ×"

    gpt2, llama, too = "onehop, GPT-2's parts", "onehop, Llama's parts", ", compiled"
    for told in (
        f"parts have {ratios(gpt2, 'plain')} the speed of nanoGPT's arithmetic",
        f"compiled {ratios(gpt2 + too, 'plain' + too)} that of the same compiled",
        f"Llama parts {ratios(llama, 'LlamaForCausalLM')} that of transformers' Llama",
        f"compiled {ratios(llama + too, 'LitGPT' + too)} that of LitGPT compiled",
        f"as it comes: {ratios(gpt2 + too, 'plain')} nanoGPT's arithmetic",
        f"{ratios(llama + too, 'LlamaForCausalLM')} transformers' Llama.",
    ):
        assert told in text, told


def test_the_page_tells_what_another_processor_gave():
    found, text = results("decode_cpu_zen4")["results"], " ".join(README.split())
    wide, half = ({**row["tokens_per_s"], **row} for row in found)
    theirs = (wide["transformers"], half["transformers"])
    told = (
        f"decodes at {wide['onehop']} tokens per second in float32 ({wide['ratio']:.2f} × transformers' {theirs[0]}), "
        f"at {half['onehop']} in bfloat16 ({half['ratio']:.2f} × {theirs[1]}) and, with `--compile`, at "
        f"{half['onehop, compiled']} ({half['ratio_compiled']:.2f} ×)."
    )
    assert told in text, told
    sizes = [results("train_cpu_zen4")["sizes"][name] for name in ("small", "middle")]
    precisions = ("float32", "bfloat16 autocast")
    for who, name in XEON.items():
        cells = " | ".join(f"{size[kind]['tokens_per_second'][who]:.0f}" for size in sizes for kind in precisions)
        assert f"| {name or who} | {cells} |" in README

    def ratios(one, other):
        return " and ".join(f"{size['float32']['ahead'][one][other]:.2f}" for size in sizes)

    gpt2, llama, too = "onehop, GPT-2's parts", "onehop, Llama's parts", ", compiled"
    halves = " and ".join(f"{size['16 bits over plain float32'][gpt2 + too]:.2f}" for size in sizes)
    beside, both = ratios(gpt2 + too, "plain"), ratios(gpt2 + too, "plain" + too)
    told = (
        f"GPT-2 parts have {ratios(gpt2, 'plain')} × the speed of nanoGPT's arithmetic, its Llama parts "
        f"{ratios(llama, 'LlamaForCausalLM')} × that of transformers' Llama; compiled, {beside}, and "
        f"{ratios(llama + too, 'LlamaForCausalLM')}; both compiled, {both} × nanoGPT's, "
        f"{ratios(llama + too, 'LitGPT' + too)} × LitGPT. In bfloat16, compiled, the GPT-2 parts have {halves} × the "
        "speed of nanoGPT's arithmetic in float32."
    )
    assert told in text, told


def test_the_half_hour_is_that_of_the_results_and_its_recipe_ships():
    found = results("shakespeare_half_hour")
    step, loss = next((step, loss) for step, _, loss in found["validation"] if round(loss, 3) == found_best(found))
    minutes, seconds = divmod(found["seconds"], 60)
    for text in (
        f"({found['parameters'] / 1e6:.1f} million parameters", f"is at {loss:.3f} after {step} of its 2000 steps",
        f"after {minutes} min {seconds} s",
    ):  # fmt: skip
        assert text in README
    recipe = read("shakespeare-half-hour", ["data.files=tinyshakespeare.txt"]).recipe.model_dump(mode="json")
    unlike = {"model": {"vocab_size"}, "train": {"measure_peak"}}  # the text's ids; a minute that was saved
    for part in ("model", "data", "task", "tune", "train"):
        rows = {key: value for key, value in recipe[part].items() if key not in unlike.get(part, ())}
        assert rows == {key: found["recipe"][part][key] for key in rows}


def found_best(found):
    return round(min(loss for _, _, loss in found["validation"]), 3)


def test_the_best_rates_of_the_page_are_those_of_the_results():
    found, page = results("width_transfer"), (ROOT / "docs" / "optimizing.md").read_text()
    for way, name in (("without", "as it is"), ("with", "`width_transfer = 64`")):
        best = found["best_rate"][way]
        loss = min(r["loss"] for r in found["runs"] if r["transfer"] == (way == "with") and r["width"] == 512)
        cells = [f"{best[str(width)]:.4f}" for width in (64, 128, 256, 512)]
        assert f"| {name} | {' | '.join(cells)} | {loss:.3f} |" in page
