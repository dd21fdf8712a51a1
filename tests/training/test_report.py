"""metrics.jsonl survives a crash; the curve is drawn for any numbers."""

import pytest

from onehop.base.errors import DataError
from onehop.training.report import Metrics, draw_losses, read_metrics


def test_lines_are_read_back_and_a_torn_last_one_is_left_out(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", step=0)
    for step in (1, 2, 3):
        metrics.write({"step": step, "loss": 0.1 * step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert read_metrics(tmp_path / "metrics.jsonl") == metrics.rows
    resumed = Metrics(tmp_path / "metrics.jsonl", step=2)
    resumed.write({"step": 3, "loss": 0.5})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["loss"] == 0.5


def test_a_line_that_is_torn_in_the_middle_is_refused_by_its_number(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2 is not JSON"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_no_file_before_the_first_line(tmp_path):
    Metrics(tmp_path / "metrics.jsonl", step=0)
    assert not list(tmp_path.iterdir())


def test_of_two_runs_that_begin_at_once_in_one_folder_the_second_to_write_is_refused(tmp_path):
    first, second = (Metrics(tmp_path / "metrics.jsonl", step=0) for _ in range(2))
    first.write({"step": 1, "loss": 1.0})
    with pytest.raises(DataError, match=r"metrics\.jsonl was written by another run meanwhile\. Set out=OTHER"):
        second.write({"step": 1, "loss": 2.0})
    first.write({"step": 2, "loss": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == first.rows


def test_of_two_runs_that_go_on_with_the_same_lines_the_second_to_write_is_refused(tmp_path):
    """And a file that somebody has removed meanwhile ends no run."""
    path = tmp_path / "metrics.jsonl"
    Metrics(path, step=0).write({"step": 1})
    first, second = (Metrics(path, step=1) for _ in range(2))
    first.write({"step": 2})
    with pytest.raises(DataError, match=r"metrics\.jsonl was written by another run meanwhile"):
        second.write({"step": 2})
    path.unlink()
    first.write({"step": 3})
    assert read_metrics(path) == [{"step": 3}]


def test_steps_that_two_runs_at_once_have_left_twice_are_kept_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(f'{{"step": {step}, "by": {by}}}\n' for step, by in ((1, 0), (2, 0), (2, 1), (1, 1), (3, 1)))
    )
    resumed = Metrics(path, step=3)
    assert read_metrics(path) == resumed.rows == [{"step": 1, "by": 0}, {"step": 2, "by": 0}, {"step": 3, "by": 1}]


@pytest.mark.parametrize("best", [None, 0.4])
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1, "loss": 0.0, "val_loss": 0.0}],
        [{"step": 1, "loss": None}],
        [{"step": 1, "loss": 5.0, "val_loss": 4.0}, {"step": 2, "loss": 0.3}],
    ],
)
def test_a_curve_is_drawn_of_few_or_broken_numbers(tmp_path, rows, best):
    draw_losses(rows, tmp_path / "loss.png", best=best, best_label="entropy", title="a run")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("title", ["a$_$", "p$x^{2$", "$", "a_b^c", r"\frac{"])
def test_a_title_is_drawn_word_for_word(tmp_path, title):
    draw_losses([{"step": 1, "loss": 2.0}], tmp_path / "loss.png", best=1.0, best_label=title, title=title)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", [b"\xff\xfe\xfa", b"[1]", b'{"loss": 1}', b'{"step": "x"}'])
def test_a_line_that_no_run_wrote_is_refused_by_its_number(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2 is no.*start over with --fresh"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_file_whose_only_line_is_torn_is_begun_again(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo')
    metrics = Metrics(tmp_path / "metrics.jsonl", step=1)
    metrics.write({"step": 2})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 2}]
