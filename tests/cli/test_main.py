"""The command line: what it says, where it says it, and with which exit code."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
from rich.console import Console

import onehop.cli.main as main_file
from onehop import __version__
from onehop.base.shipped import shipped, shipped_names
from onehop.cli import listing
from onehop.cli.common import table
from onehop.cli.main import COMMANDS, main
from onehop.config.read import read


def said(words, capsys):
    """Run one command line -> (exit code, standard output, standard error)."""
    code = main(words)
    out = capsys.readouterr()
    return code, out.out, out.err


def refusal(words, capsys):
    code, _, err = said(words, capsys)
    assert code == 2
    assert err.startswith("onehop: ")
    assert err.count("\n") == 1
    return err


def test_help_lists_exactly_the_commands_that_exist(capsys):
    code, out, _ = said(["--help"], capsys)
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_explains_itself_and_offers_json(verb, capsys):
    code, out, _ = said([verb, "--help"], capsys)
    assert code == 0
    assert "--json" in out


def test_help_loads_neither_torch_nor_the_config_classes():
    look = "print(*(name in sys.modules for name in ('torch', 'onehop.config')))"
    probe = f"import sys; from onehop.cli.main import main; main(['--help']); {look}"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False False"


def test_sigterm_leaves_nothing_half_written(monkeypatch, tmp_path):
    """What holds something for a while, as the runs of `plan --measure` their folder, can still remove it."""

    def terminated(words):
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(main_file, "_dispatch", terminated)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--measure"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_package_is_the_command_where_its_script_is_not_on_the_path():
    done = subprocess.run([sys.executable, "-m", "onehop", "trian"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean train?" in done.stderr


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    assert "Did you mean train?" in refusal(["trian"], capsys)


def test_a_flag_that_is_a_recipe_key_is_answered_with_its_spelling(capsys):
    assert "write train.steps=10" in refusal(["train", "tiny", "--steps", "10"], capsys)


def test_a_misspelt_key_is_answered_with_the_nearest(capsys):
    assert "train.step does not exist. Did you mean train.steps?" in refusal(["train", "tiny", "train.step=1"], capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["generate", "no-such-model", "hello"], "no-such-model"),
        (["train", "no-such-recipe"], "no-such-recipe"),
        (["eval", "no-such-model"], "give a text to read"),
        (["eval", "no-such-model", "no-such-file.txt"], "no-such-file.txt"),
        (["list", "recipe"], "Did you mean recipes?"),
        (["generate"], "Missing argument"),
        (["generate", "m", "p", "--top-k", "many"], "--top-k"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, text, capsys):
    assert text in refusal(words, capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["generate", "fables-tiny", "a", "--max-new-tokens", "-1"], "max_new_tokens=-1 must be a whole number"),
        (["generate", "fables-tiny", "a", "--alternatives", "-1"], "Invalid value for '--alternatives'"),
        (["generate", "fables-tiny", "a", "--top-p", "2"], "top_p=2.0 must be above 0 and at most 1"),
        (
            ["generate", "fables-tiny", "a", "--kernel", "foo"],
            "'foo' does not exist. Known: auto, fused, plain, tiled.",
        ),
        (["generate", "fables-tiny", "a", "--adapter", "nowhere"], "nowhere holds no adapter_config.json"),
        (["chat", "fables-tiny", "a", "--max-new-tokens", "0"], "max_new_tokens=0 must be a whole number"),
        (["chat", "fables-tiny", "a"], "has no chat template"),
        (
            ["eval", "fables-tiny", "--corpus", "fables", "--stride", "0"],
            "--stride 0 must be a whole number, 1 or more",
        ),
        (["eval", "fables-tiny", "--tasks", ","], "names no task"),
        (["eval", "fables-tiny", "--tasks", "x", "--limit", "0"], "--limit 0 must be a whole number, 1 or more"),
    ],
)
def test_what_can_be_known_without_the_weights_is_refused_before_they_are_read(words, text, capsys):
    """In one line: loading tells the sizes first."""
    assert text in refusal(words, capsys)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("tokenizer.json", "{", "is not a whole tokenizer.json"),
        ("tokenizer.json", None, "has no tokenizer, so text cannot be encoded"),
        (
            "generation_config.json",
            '{"temperature": "hot"}',
            "generation_config.json: temperature='hot' must be a finite number, 0 (greedy) or more. Give another",
        ),
        (
            "generation_config.json",
            '{"top_k": -4}',
            "generation_config.json: top_k=-4 must be a whole number, 0 or more",
        ),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id=x should be a token id"),
    ],
)
def test_damage_beside_the_weights_is_refused_before_they_are_read(file, content, text, capsys, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(shipped("models", "fables-tiny"), folder)
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_text(content)
    assert text in refusal(["generate", str(folder), "a"], capsys)


def test_a_refusal_is_an_object_where_a_machine_reads(capsys):
    code, out, err = said(["generate", "no-such-model", "hello", "--json"], capsys)
    assert code == 2
    assert json.loads(out)["error"] in err


def test_a_machine_reads_one_line_with_a_list_of_all_answers(capsys):
    """What the help of --json says: JSON, in one line; for several prompts that is no object."""
    words = ["generate", "fables-tiny", "A fox", "A hen", "--max-new-tokens", "3", "--json"]
    code, out, _ = said(words, capsys)
    assert (code, out.count("\n")) == (0, 1)
    assert [answer["prompt"] for answer in json.loads(out)] == ["A fox", "A hen"]
    code, out, _ = said(["generate", "--help"], capsys)
    assert "print JSON, in one line, instead of text" in " ".join(out.replace("│", " ").split())


def test_list_names_what_ships(capsys):
    code, out, _ = said(["list", "--json"], capsys)
    found = json.loads(out)
    assert code == 0
    assert {"recipes", "presets", "corpora", "models"} == set(found)
    assert {"fables", "python-stdlib", "dates"} == {row["name"] for row in found["corpora"]}
    assert {"quickstart", "tiny", "shakespeare-char"} <= {row["name"] for row in found["recipes"]}


def test_every_key_of_a_recipe_is_listed_with_what_it_is_for(capsys):
    code, out, _ = said(["list", "keys", "--json"], capsys)
    listed = {row["name"]: row["about"] for row in json.loads(out)["keys"]}
    assert code == 0
    assert set(read("quickstart").origins) <= listed.keys()
    assert listed["model.attention.position.kind"] == "[rope, alibi, t5, none]"
    assert listed["train.lr"] == "highest learning rate"
    assert listed["model.attention.sees"].endswith(" [causal, prefix, all]")


def test_explain_tells_where_each_value_comes_from_and_trains_nothing(capsys, tmp_path):
    code, out, _ = said(["train", "tiny", f"out={tmp_path}/x", "train.steps=7", "--explain", "--json"], capsys)
    rows = json.loads(out)
    assert code == 0
    assert rows["train.steps"] == {"value": 7, "origin": "command line"}
    assert rows["train.clip"]["origin"] == "default"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["x[/y]", "[bold]x[/bold]", "[a-z]*.txt"])
def test_brackets_in_a_value_are_no_markup(name, capsys, tmp_path):
    assert main(["train", "tiny", "--explain", f"out={tmp_path}/{name}"]) == 0
    assert f"{tmp_path}/{name}" in capsys.readouterr().out


def test_explain_names_every_key_whole_in_a_line_of_its_own(capsys):
    """Through a pipe, as `onehop train tiny --explain | grep scaling` reads it."""
    scaling = ["model.attention.position.scaling=linear", "model.attention.position.scaling.factor=4"]
    code, out, _ = said(["train", "tiny", *scaling, "--explain"], capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(read("tiny", scaling).origins)


def test_a_narrow_terminal_breaks_values_and_cuts_no_name(capsys):
    name, value = "model.attention.position.scaling.original_max_len", "a-value-of-thirty-letters-or-so"
    Console(width=60, file=sys.stdout).print(table("key", "value", rows=[(name, value)]))
    words = capsys.readouterr().out.split()
    assert name in words
    assert "".join(words[3:]) == value


def test_copy_writes_an_editable_recipe_and_never_overwrites(capsys, tmp_path):
    target = tmp_path / "my.toml"
    assert said(["train", "tiny", "--copy", str(target)], capsys)[0] == 0
    assert "[model]" in target.read_text()
    assert "exists already" in refusal(["train", "tiny", "--copy", str(target)], capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train", "tiny", "--explain", "--fresh"], "--fresh and --explain exclude each other"),
        (["eval", "m", __file__, "--seed", "3"], "--documents and --seed choose from a built-in corpus"),
    ],
)
def test_an_option_that_could_have_no_effect_is_refused(words, text, capsys):
    assert text in refusal(words, capsys)


def test_a_machine_hears_where_the_copy_went(capsys, tmp_path):
    code, out, _ = said(["train", "tiny", "--copy", str(tmp_path / "my.toml"), "--json"], capsys)
    assert code == 0
    assert json.loads(out) == {"copy": str(tmp_path / "my.toml")}


@pytest.mark.parametrize("name", shipped_names("runs"))
def test_a_copy_in_another_folder_is_the_same_recipe(name, capsys, tmp_path):
    target = tmp_path / "my.toml"
    assert said(["train", name, "--copy", str(target)], capsys)[0] == 0
    assert read(target).recipe == read(name).recipe


def test_a_piped_prompt_that_is_no_text_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert "standard input is not UTF-8 text" in refusal(["generate", "fables-tiny"], capsys)


@pytest.mark.parametrize(
    "error", [MemoryError("74 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 74 GiB")]
)
def test_memory_that_does_not_suffice_is_told_in_one_line(error, monkeypatch, capsys):
    def fails(words):
        raise error

    monkeypatch.setattr(main_file, "_dispatch", fails)
    assert "the memory does not suffice" in refusal(["train", "tiny"], capsys)


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    def fails(words):
        raise RuntimeError("a bug")

    monkeypatch.setattr(main_file, "_dispatch", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train", "tiny"])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PermissionError(13, "Permission denied", "/data/a.txt"),
            "/data/a.txt cannot be used: Permission denied. Check",
        ),
        (OSError(28, "No space left on device"), "failed: No space left on device. Free some space"),
    ],
)
def test_what_the_machine_refuses_is_told_in_one_line(error, text, monkeypatch, capsys):
    def fails(words):
        raise error

    monkeypatch.setattr(main_file, "_dispatch", fails)
    assert text in refusal(["train", "tiny"], capsys)


def test_ctrl_c_is_told_and_ends_with_130(monkeypatch, capsys):
    def interrupted(what):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "_rows", interrupted)
    assert said(["list"], capsys) == (130, "", "onehop: interrupted\n")


def test_ctrl_c_while_a_command_is_imported_is_told_too(tmp_path):
    """Libraries turn it into errors of their own there, as numpy does. (What runs behind a shell may ignore it.)"""
    (tmp_path / "slow.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n"
        "    raise ImportError('cannot load module more than once per process')\n"
    )
    call = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from onehop.cli import main; main.COMMANDS['list'] = ('slow', ''); main.main(['list'])"
    )
    done = subprocess.run([sys.executable, "-c", call, "list"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "onehop: interrupted\n")


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_the_command_line_is_loaded_is_told_too_unless_it_is_ignored(ignored):
    call = (
        "import builtins, os, signal, sys; there = builtins.__import__; sent = []\n"
        f"signal.signal(signal.SIGINT, signal.{'SIG_IGN' if ignored else 'default_int_handler'})\n"
        "def slow(name, *more):\n"
        "    if name == 'typer' and not sent: sent.append(os.kill(os.getpid(), signal.SIGINT))\n"
        "    return there(name, *more)\n"
        "builtins.__import__ = slow\n"
        "from onehop.__main__ import run\n"
        "sys.argv[1:] = ['--version']\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    told = (0, f"onehop {__version__}\n", "") if ignored else (130, "", "onehop: interrupted\n")
    assert (done.returncode, done.stdout, done.stderr) == told


def test_chat_tells_the_seed_that_it_drew_and_repeats_by_it(capsys, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(shipped("models", "fables-tiny"), folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ["chat", str(folder), "Once", "--max-new-tokens", "8", "--temperature", "1.5"]
    code, out, err = said([*words, "--presence-penalty", "0.5", "--frequency-penalty", "0.5"], capsys)
    seed = re.search(r"\(seed (\d+)\)\n", err)[1]
    assert code == 0
    again = said([*words, "--presence-penalty", "0.5", "--frequency-penalty", "0.5", "--seed", seed], capsys)
    assert (again[1], "(seed" in again[2]) == (out, False)
    assert "(seed" not in said([*words, "--temperature", "0"], capsys)[2]


@pytest.mark.parametrize("words", [["list"], ["train", "tiny", "--explain"], ["--help"]])
def test_a_reader_that_has_gone_is_no_error(words):
    """Runs with a standard output whose other end is closed, as `| head -1` leaves it."""
    read, write = os.pipe()
    os.close(read)
    call = "from onehop.__main__ import run; run()"
    done = subprocess.run([sys.executable, "-c", call, *words], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_eval_tells_the_loss_by_document_and_by_position(capsys):
    """Of the model that ships: three stories, and the places in its context that they reach."""
    words = ["eval", "fables-tiny", "--corpus", "fables", "--documents", "3", "--by-document", "--by-position"]
    code, out, _ = said([*words, "--json"], capsys)
    found = json.loads(out)
    assert code == 0
    assert len(found["documents"]) == 3
    for parts in (found["documents"], found["positions"]):
        assert sum(part["n_tokens"] for part in parts) == found["n_tokens"]
        total = sum(part["loss"] * part["n_tokens"] for part in parts)
        assert total / found["n_tokens"] == pytest.approx(found["loss"], rel=1e-6)
    assert [part["from"] for part in found["positions"]][:3] == [1, 2, 4]
    code, out, _ = said(words, capsys)
    assert "document  tokens  loss    bits per byte" in out
    assert "tokens before  tokens  loss" in out


def test_the_command_that_is_proposed_after_a_run_on_other_letters_runs(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("привет мир, 12 34\n" * 400)
    keys = [f"data.files={tmp_path}/text.txt", "data.tokenizer=characters", "train.steps=1", "train.sample_tokens=0"]
    code, out, _ = said(["train", "tiny", f"out={tmp_path}/out", *keys], capsys)
    assert code == 0
    (command,) = re.findall("onehop (generate .*)", out)
    code, text, _ = said([*shlex.split(command), "--max-new-tokens", "3"], capsys)
    assert code == 0
    assert set(text) & set("приветм")
