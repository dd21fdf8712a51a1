"""The code of onehop keeps the rules of its house, and each rule catches what it is there for."""

import subprocess
import sys

import pytest

from onehop.floors import FLOORS, ROOT_FILES, TORCH_FREE
from tests import house_rules as rules
from tests.house_rules import RULES, Source, sources


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule):
    complaints = [complaint for source in sources() for complaint in rule(source)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_every_package_has_its_row_in_the_floor_table():
    found = {source.package for source in sources()}
    assert found <= FLOORS.keys() | ROOT_FILES.keys()
    assert FLOORS.keys() >= TORCH_FREE


def test_a_torch_free_floor_stands_only_on_torch_free_floors():
    """Otherwise it would bring torch through what it imports: each floor below is free, or forbidden by its height."""
    for package in TORCH_FREE:
        below = {name for name, floor in FLOORS.items() if floor < FLOORS[package]}
        assert below <= TORCH_FREE


def test_the_torch_free_floors_do_not_load_torch():
    modules = [
        "onehop." + source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for source in sources()
        if source.package in TORCH_FREE
    ]
    assert modules
    code = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name + ' loads torch'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=rules.PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LONG_FUNCTION = "def f():\n" + "    a = 1\n" * 40
CASES = [
    (rules.floors, "parts/a.py", "import onehop.model.block", "(floor 2) imports onehop.model.block (floor 3)"),
    (rules.floors, "parts/a.py", "from onehop.data import loader", "imports onehop.data (floor 2)"),
    (rules.floors, "parts/a.py", "def f():\n    from onehop import lm", "imports onehop.lm (floor 6)"),
    (rules.floors, "parts/a.py", "from onehop import load", "public name or unknown package onehop.load"),
    (rules.floors, "parts/a.py", "import onehop", "imports onehop (floor 10)"),
    (rules.floors, "parts/a.py", "from . import b", "imports relatively"),
    (rules.floors, "base/a.py", "if TYPE_CHECKING:\n    import onehop.text", "imports onehop.text (floor 1)"),
    (rules.floors, "extra/a.py", "", "extra has no row"),
    (rules.floors, "helper.py", "", "helper has no row"),
    (rules.imports_at_the_top, "parts/a.py", "def f():\n    import json", "imports json inside a function"),
    (rules.imports_at_the_top, "parts/a.py", "async def f():\n    import torch", "imports torch inside a function"),
    (rules.imports_at_the_top, "parts/a.py", "def f():\n    import onehop.base", "imports onehop.base inside"),
    (rules.no_torch, "text/a.py", "from torch.nn import functional", "imports torch.nn"),
    (rules.no_torch, "config/a.py", "def f():\n    import transformers", "imports transformers"),
    (rules.no_torch, "formats/a.py", "from safetensors.torch import load", "imports safetensors.torch"),
    (rules.sizes, "lm.py", "\n" * 401, "has 401 lines"),
    (rules.sizes, "lm.py", LONG_FUNCTION, "f has 41 lines"),
    (rules.sizes, "lm.py", "class A:\n    def f(self, a, b, c, d, e): ...", "takes 5 arguments by position"),
    (rules.no_family_names, "model/a.py", "class LlamaBlock: ...", "names the family llama"),
    (rules.no_family_names, "model/a.py", "x = name == 'google/gemma-3-270m'", "names the family gemma"),
    (rules.no_family_names, "model/a.py", "def load_gpt2(): ...", "names the family gpt2"),
    (rules.no_family_names, "model/a.py", "from onehop.formats import qwen3", "names the family qwen3"),
    (rules.no_family_names, "model/a.py", "x.llama3 = 1", "names the family llama3"),
    (rules.no_environment, "lm.py", "import os\nos.environ['A']", "uses os.environ"),
    (rules.no_environment, "parallel/a.py", "import os\nos.getenv('A')", "uses os.getenv"),
    (rules.no_environment, "lm.py", "from os import environ", "uses os.environ"),
    (rules.nothing_that_runs_data, "lm.py", "import pickle", "imports pickle"),
    (rules.nothing_that_runs_data, "lm.py", "import importlib", "imports importlib"),
    (
        rules.nothing_that_runs_data,
        "lm.py",
        "import importlib.util as u\nu.spec_from_file_location('a', 'b')",
        "runs a file",
    ),
    (rules.nothing_that_runs_data, "lm.py", "torch.load(path)", "torch.load without weights_only=True"),
    (rules.nothing_that_runs_data, "lm.py", "torch.load(path, weights_only=False)", "torch.load without"),
    (rules.nothing_that_runs_data, "lm.py", "torch.save(a, b)", "calls torch.save"),
    (rules.nothing_that_runs_data, "lm.py", "np.load(a, allow_pickle=True)", "a door for foreign code"),
    (rules.nothing_that_runs_data, "lm.py", "eval('1')", "calls eval"),
    (rules.nothing_that_runs_data, "parts/own.py", "exec('1')", "calls exec, which runs a file"),
    (rules.nothing_unfinished, "lm.py", "raise NotImplementedError", "says NotImplementedError"),
    (rules.nothing_unfinished, "lm.py", "# TODO later", "says TODO"),
]


@pytest.mark.parametrize(("rule", "path", "text", "complaint"), CASES)
def test_a_rule_catches_what_it_forbids(rule, path, text, complaint):
    complaints = list(rule(Source(path, text)))
    assert len(complaints) == 1
    assert complaint in complaints[0]


GOOD = [
    (rules.floors, "lm.py", "import onehop.generate.engine\nfrom onehop.base.errors import OnehopError"),
    (rules.floors, "parts/a.py", "from onehop.parts import b\nimport torch"),
    (rules.floors, "cli/main.py", "from onehop import floors"),
    (rules.floors, "weights/a.py", "from onehop import __version__"),
    (rules.floors, "__init__.py", "if TYPE_CHECKING:\n    from onehop.lm import load"),
    (rules.imports_at_the_top, "text/a.py", "def f():\n    from tokenizers import Tokenizer"),
    (rules.imports_at_the_top, "cli/a.py", "def f():\n    import torch\n    from onehop.training import train"),
    (rules.no_torch, "parts/a.py", "import torch"),
    (rules.no_torch, "cost/a.py", "if TYPE_CHECKING:\n    import torch"),
    (
        rules.sizes,
        "lm.py",
        "def f(a, b, c, *, d, e): ...\nclass A:\n    def forward(ctx, q, k, v, o): ...\n" + "\n" * 300,
    ),
    (rules.sizes, "cli/a.py", "@app.command()\ndef f(a, b, c, d, e, f): ..."),
    (rules.sizes, "lm.py", "def f():\n    def score_mod(score, b, h, q, k): ..."),
    (rules.no_family_names, "model/a.py", '"""As in Llama."""\nx = Field(description="as in Gemma")\nphi = 1'),
    (rules.no_family_names, "config/position.py", "class Llama3Scaling:\n    kind = 'llama3'"),
    (rules.no_family_names, "formats/llama.py", "LLAMA = 'llama'"),
    (rules.no_family_names, "config/presets.py", "PRESETS = {'llama-3-8b': 1}"),
    (rules.no_environment, "cli/main.py", "import os\nos.environ['A']"),
    (rules.no_environment, "parallel/launch.py", "import os\nos.environ['A']"),
    (
        rules.nothing_that_runs_data,
        "lm.py",
        "model.eval()\nmodel.compile()\nre.compile(a)\ntorch.load(a, weights_only=True)",
    ),
    (rules.nothing_that_runs_data, "config/own.py", "exec(compile('1', 'a', 'exec'), module.__dict__)"),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_lets_pass_what_it_allows(rule, path, text):
    assert list(rule(Source(path, text))) == []
