"""The house stands: a light import, one version, set-up that is repeatable, and an account of every skipped test."""

import ast
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import onehop

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = {"torch", "numpy", "matplotlib", "tokenizers", "safetensors", "transformers", "huggingface_hub", "jinja2"}


def loaded_after(code):
    """The names of all modules that are loaded when `code` has run in a process of its own, and what it printed."""
    tail = "\nimport sys; print('\\n@', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code + tail], cwd=ROOT, capture_output=True, text=True, check=True)
    printed, _, modules = done.stdout.rpartition("\n@ ")
    return set(modules.split()), printed


def test_importing_onehop_loads_nothing_heavy():
    modules, _ = loaded_after("import onehop")
    assert "onehop" in modules
    assert not modules & (HEAVY | {"pydantic", "typer"})


def test_help_is_printed_without_loading_anything_heavy():
    modules, printed = loaded_after(
        "import sys; sys.argv = ['onehop', '--help']\n"
        "from onehop.__main__ import run\n"
        "try: run()\n"
        "except SystemExit: pass"
    )
    assert "train" in printed
    assert "generate" in printed
    assert not modules & HEAVY


@pytest.mark.parametrize("name", onehop.__all__)
def test_every_public_name_is_found_where_the_table_says(name):
    thing = getattr(onehop, name)
    assert getattr(onehop, name) is thing
    if name in onehop._PUBLIC:
        module, attribute = onehop._PUBLIC[name]
        assert thing is getattr(importlib.import_module(module), attribute)


def test_the_public_names_are_listed_once_in_each_of_three_places():
    """For people (dir), for `import *`, for type checkers (the guarded imports) and for the look-up itself."""
    guard = next(node for node in ast.parse(Path(onehop.__file__).read_text()).body if isinstance(node, ast.If))
    typed = {alias.asname or alias.name: (node.module, alias.name) for node in guard.body for alias in node.names}
    assert typed == onehop._PUBLIC
    assert set(onehop.__all__) == onehop._PUBLIC.keys() | {"__version__"}
    assert dir(onehop) == sorted(onehop.__all__)


def test_an_unknown_public_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"^onehop has no 'atend'\. Did you mean attend\?$"):
        _ = onehop.atend


def test_the_version_is_the_installed_one():
    try:
        installed = version(PROJECT["name"])
    except PackageNotFoundError:
        pytest.skip("onehop is imported from a folder and not installed")
    assert installed == onehop.__version__


def pins():
    """constraints.txt as {normalised name: version}."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return {normal(line.split("==")[0]): line.split("==")[1] for line in lines if line}


def normal(name):
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_make_installs_is_pinned_and_allowed_by_the_project():
    """Each direct requirement of the core and of the development tools, with a pin at or above its lowest version."""
    for requirement in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        name, lowest = requirement.split(">=")
        pinned = pins()[normal(name)]
        numbers = [tuple(int(part) for part in text.split(".")[:3]) for text in (pinned, lowest)]
        assert numbers[0] >= numbers[1], requirement


def test_nothing_that_make_installs_is_left_unpinned():
    """The requirements of the requirements too, on this platform; torch fixes its own CUDA packages."""
    known, seen = pins(), set()
    todo = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        assert name in known, f"{name} is not pinned"
        todo += [Requirement(text) for text in importlib.metadata.requires(name) or []]
    assert len(seen) > 40


def test_torch_has_a_lowest_version_and_no_ceiling():
    assert "torch>=2.11" in PROJECT["dependencies"]
    assert pins()["torch"] == "2.13.0"


def test_the_extra_all_holds_every_other_extra_but_the_development_tools():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.search(r"\[(.*)\]", everything)[1].split(",")) == extras.keys() - {"all", "dev"}


def make(*arguments):
    """`make` with these arguments and nothing inherited from the `make` that may be running these tests."""
    mine = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON", "TORCH_INDEX", "VENV"}
    env = {name: value for name, value in os.environ.items() if name not in mine}
    command = ["make", "-C", ROOT, "--no-print-directory", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_make_help_lists_every_target_that_a_person_calls():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = re.findall(r"^make ([a-z-]+)", make("help").stdout, re.MULTILINE)
    assert listed == [target for target in targets if target != "check-choices"]
    assert {"demo", "test", "test-slow", "lint", "bench", "clean", "help"} <= set(listed)


def test_make_takes_the_python_that_is_named():
    done = make("python", f"PYTHON={sys.executable}")
    assert done.stdout.split()[1] == ".".join(map(str, sys.version_info[:3]))


def test_make_refuses_a_python_that_is_not_there_in_one_line():
    done = make("python", "PYTHON=no-such-python")
    assert done.returncode
    assert done.stderr.splitlines()[0] == (
        "onehop needs Python 3.11 or newer with venv and ensurepip; tried: no-such-python. "
        "Name one: make PYTHON=/path/to/python3"
    )


@pytest.mark.parametrize("given", [[], ["PYTHON=old"]], ids=["found by itself", "named"])
def test_make_refuses_a_python_that_is_too_old(tmp_path, given):
    """A machine on which every Python is 3.10: a stand-in that answers the question of the Makefile with no."""
    for name in ("python3", "python3.13", "python3.12", "python3.11", "python3.14", "python", "old"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    path = f"PATH={tmp_path}:/usr/bin:/bin"
    done = make("python", path, *given)
    assert done.returncode
    assert done.stderr.startswith("onehop needs Python 3.11 or newer")


def test_make_passes_over_commands_that_do_not_work(tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.13").symlink_to(sys.executable)
    for name in ("python3", "python3.13"):
        (tmp_path / name).chmod(0o755)
    done = make("python", f"PATH={tmp_path}:/usr/bin:/bin")
    assert done.stdout.split()[1] == ".".join(map(str, sys.version_info[:3]))


SKIPPING = {"skip", "skipif", "importorskip", "xfail"}


def skips(tree):
    """The name of the test (or fixture, or `module`) around each skip in a parsed test file."""
    for statement in tree.body:
        name = getattr(statement, "name", "module")
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and node.attr in SKIPPING and "pytest" in ast.unparse(node.value):
                yield name


def test_every_skipped_test_has_a_row_that_says_why_and_every_row_a_test():
    rows = re.findall(
        r"^\| `(tests/\S+)` \| `(\w+)` \| .+ \| .+ \|$", (ROOT / "tests" / "SKIPS.md").read_text(), re.MULTILINE
    )
    found = {
        (file.relative_to(ROOT).as_posix(), name)
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for name in skips(ast.parse(file.read_text()))
    }
    assert set(rows) == found


def test_a_test_that_is_skipped_is_seen():
    text = "import pytest\ndef test_a():\n    pytest.skip('x')\n@pytest.mark.skipif(True)\ndef test_b(): ...\n"
    assert list(skips(ast.parse(text))) == ["test_a", "test_b"]
