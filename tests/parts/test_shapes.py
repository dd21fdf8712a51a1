"""Shapes are checked letter by letter, and refusals say what was needed."""

import pytest
import torch

from onehop.parts.shapes import AXES, ShapeError, check_shape


def test_the_sizes_of_one_tensor_bind_the_next():
    sizes = check_shape("q", torch.zeros(2, 3, 4, 8), "B T H D")
    assert sizes == {"B": 2, "T": 3, "H": 4, "D": 8}
    assert check_shape("k", torch.zeros(2, 5, 1, 8), "B S K D", **sizes)["S"] == 5


def test_a_letter_that_occurs_twice_must_agree_with_itself():
    assert check_shape("mask", torch.zeros(3, 3), "T T") == {"T": 3}
    with pytest.raises(ShapeError):
        check_shape("mask", torch.zeros(3, 4), "T T")


def test_a_wrong_size_is_refused_with_what_was_given_and_what_is_needed():
    with pytest.raises(ShapeError, match=r"k has shape \(2, 5, 1, 7\), but needs \(B, S, K, D\): .*D head width = 8"):
        check_shape("k", torch.zeros(2, 5, 1, 7), "B S K D", B=2, D=8)


def test_a_wrong_number_of_axes_is_refused():
    with pytest.raises(ShapeError, match=r"q has shape \(2, 3\), but needs \(B, T, H, D\): B batch, T new tokens"):
        check_shape("q", torch.zeros(2, 3), "B T H D")


def test_every_letter_of_the_legend_is_one_capital():
    assert all(len(letter) == 1 and letter.isupper() for letter in AXES)
