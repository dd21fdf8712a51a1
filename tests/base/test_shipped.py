import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onehop
from onehop.base.shipped import shipped, shipped_names

PACKAGE = Path(onehop.__file__).parent
ASK = (
    "import sys; from onehop.base.shipped import shipped, shipped_names; "
    "print(shipped_names('runs'), shipped_names('models'), shipped('runs', 'tiny'), shipped('models', 'small'))"
)


def ask_in(place):
    """What a copy of the package at `place` finds, in a process of its own."""
    (place / "onehop").mkdir(parents=True)
    (place / "onehop" / "__init__.py").write_text("")
    shutil.copytree(PACKAGE / "base", place / "onehop" / "base")
    return lambda: subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(place)},
    ).stdout.strip()


def fill(root):
    """A recipe and a model below `root`, and things that are neither."""
    (root / "runs").mkdir()
    (root / "runs" / "tiny.toml").write_text("")
    (root / "runs" / "my-results").mkdir()
    (root / "models" / "small").mkdir(parents=True)
    (root / "models" / "small" / "model.safetensors").write_text("")
    (root / "models" / "notes").mkdir()


def test_a_checkout_and_a_wheel_find_the_same_names(tmp_path):
    checkout, wheel = ask_in(tmp_path / "checkout"), ask_in(tmp_path / "wheel")
    (tmp_path / "checkout" / "pyproject.toml").write_text("")
    fill(tmp_path / "checkout")
    fill(tmp_path / "wheel" / "onehop")
    for answer, root in ((checkout(), tmp_path / "checkout"), (wheel(), tmp_path / "wheel" / "onehop")):
        assert answer == f"['tiny'] ['small'] {root / 'runs' / 'tiny.toml'} {root / 'models' / 'small'}"


def test_a_strangers_folder_of_the_same_name_beside_an_installed_package_is_not_ours(tmp_path):
    installed = ask_in(tmp_path / "site-packages")
    fill(tmp_path / "site-packages")
    assert installed() == "[] [] None None"


def test_every_name_that_is_listed_is_found_and_nothing_else():
    for kind in ("runs", "models"):
        for name in shipped_names(kind):
            assert shipped(kind, name).exists()
        assert shipped(kind, "no-such-name") is None
        assert shipped(kind, "../pyproject") is None


def test_an_unknown_kind_is_our_own_mistake():
    with pytest.raises(ValueError, match="Did you mean runs"):
        shipped_names("run")
