"""A recipe is planned for rows as its training has them."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

import onehop
from onehop.base.units import human_bytes
from onehop.cli.plan_rows import have_places
from onehop.cli.plan_source import source
from onehop.config import to_toml
from onehop.cost import Asked, Plan
from onehop.training.loss import places as own_places
from tests.training.small_runs import recipe

MOE = {"kind": "moe", "expert": "gated", "d_ff": 24, "n_experts": 4, "n_active": 1}
ONE_A_ROW = "\n".join(f"one crow hides the corn {i}." for i in range(100))
SOME_SHORT = "\n".join(["a fox sees a nut and hides it under the corn of a crow"] * 20 + ["the hen eats."] * 2) + "\n"
# name -> whether rows get places of their own, model, data, text (None: several sentences fit into a row)
ROWS = {
    "several documents": (True, {}, {}, None),
    "several documents, in few rows": (True, {}, {}, SOME_SHORT),
    "one document": (False, {"max_len": 12}, {}, ONE_A_ROW),
    "one document, experts": (True, {"max_len": 12, "ffn": MOE}, {}, ONE_A_ROW),
    "a stream": (True, {"max_len": 16}, {"packing": "stream"}, ONE_A_ROW),
    "documents that are joined": (False, {}, {"documents": "joined"}, None),
    "joined, experts": (True, {"ffn": MOE}, {"documents": "joined"}, None),
    "one long document": (False, {}, {"separator": None, "validation": 0.3, "packing": "stream"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ROWS if name != "one long document"])
def test_the_plan_of_a_recipe_is_the_one_that_its_training_prints(tmp_path, name):
    places, model, data, text = ROWS[name]
    wanted = recipe(tmp_path, model={**model, "vocab_size": 280}, data=data, text=text)
    (tmp_path / "it.toml").write_text(to_toml(wanted))
    found = source(str(tmp_path / "it.toml"))
    assert found.trained["packed"] is places
    console = Console(file=io.StringIO(), width=300)
    run = onehop.train(wanted, console=console)
    t = run.trainer
    batches = [t.placed(t.loader.batch(i)) for i in range(t.progress.batches)]
    assert any(own_places(t.model, batch) is not None for batch in batches) is places
    asked = Asked(**found.trained)
    live = human_bytes(Plan(t.recipe.model).training_memory(asked, on_cpu=True).live)
    assert f"memory at the peak: {live} of tensors planned" in console.file.getvalue()


def test_a_text_that_is_one_document_fills_rows_alone(tmp_path):
    places, model, data, text = ROWS["one long document"]
    assert have_places(recipe(tmp_path, model=model, data=data, text=text)) is places


def test_a_text_that_cannot_be_read_is_taken_to_be_packed(tmp_path):
    wanted = recipe(tmp_path)
    (tmp_path / "text.txt").unlink()
    assert have_places(wanted)


def test_the_rows_of_a_recipe_are_known_without_torch():
    code = (
        "import sys; from onehop.cli.main import main; main(['plan', 'quickstart', '--json']); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False"
    assert '"packed": false' in out  # one fable a row
