"""`onehop verify`: a table for people, JSON for machines, exit code 1 where something differs, a picture."""

import json

import pytest
import torch

from onehop.cli.main import main
from onehop.lm import LanguageModel
from tests.small_models import decoder, small_model
from tests.text.small_tokenizers import bytes_only


@pytest.fixture
def folder(tmp_path):
    lm = LanguageModel(small_model(decoder(vocab_size=264), dtype=torch.float32), bytes_only())
    lm.save(tmp_path / "model", format="hf")
    return tmp_path / "model"


def test_people_read_the_cost_the_positions_and_a_table(folder, tmp_path, capsys):
    assert main(["verify", str(folder), "--no-compile", "--out", str(tmp_path / "positions.png")]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("about ")
    assert first.endswith(" beside the model")
    assert any("today's spelling" in line or "both ages' spelling" in line for line in lines)
    assert sum(line.startswith(" ok  ") for line in lines) >= 17
    assert any(line == "  –  compiled = plain: not asked for (compile)" for line in lines)
    table = [line for line in lines if line.startswith((" ok  ", "  –  "))]
    assert [line for line in table if len(line) > 110] == []
    assert (tmp_path / "positions.png").stat().st_size > 1000


def test_machines_read_the_same_and_a_difference_is_exit_code_1(folder, monkeypatch, capsys):
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda q, k, v, **_: torch.zeros_like(q)
    )  # fmt: skip
    assert main(["verify", str(folder), "--no-compile", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert found["expected"]["seconds"] > 0
    assert found["positions"]["words"]
    failed = {check["name"]: check for check in found["checks"] if check["passed"] is False}
    assert failed["kernel fused = plain"]["where"] == "layers.0.attention"
    assert failed["kernel fused = plain"]["unit"] == "eps of float32"


def test_damaged_weights_are_refused_before_anything_is_compared(folder, capsys):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(["verify", str(folder), "--no-compile"]) == 2
    assert "layers.1.ffn.w2.weight holds NaN" in capsys.readouterr().err


def test_a_length_that_is_none_is_refused(folder, capsys):
    assert main(["verify", str(folder), "--length", "0"]) == 2
    assert "length=0 must be a number of tokens, 1 or more" in capsys.readouterr().err


def test_a_length_beyond_the_models_longest_text_is_refused(folder, capsys):
    assert main(["verify", str(folder), "--length", "65"]) == 2
    told = capsys.readouterr()
    assert told.err.endswith("length=65 is more than 64, the model's longest text. Give 64 or less.\n")
    assert told.out == ""


def test_a_picture_is_a_png_or_refused_before_the_model_is_read(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nowhere"), "--out", str(tmp_path / "foo.txt")]) == 2
    assert capsys.readouterr().err == (
        f"onehop: --out {tmp_path}/foo.txt: the plot is a PNG. Give a name that ends in .png.\n"
    )
    assert list(tmp_path.iterdir()) == []
