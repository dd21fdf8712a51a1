"""What `onehop train` says at its end."""

from onehop.cli.main import main
from onehop.config import to_toml
from tests.training.small_runs import recipe


def test_the_last_lines_name_the_files_that_are_there(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_text(to_toml(recipe(tmp_path, steps=1)))
    assert main(["train", str(file), "train.sample_tokens=0"]) == 0
    assert "report.html, loss.png, metrics.jsonl\n" in capsys.readouterr().out
    assert main(["train", str(file), "--fresh"]) == 0
    assert "report.html, loss.png, samples.txt, metrics.jsonl\n" in capsys.readouterr().out
