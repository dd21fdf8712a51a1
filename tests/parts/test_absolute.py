"""Absolute positions: a row per position, or the published waves."""

import math

import pytest
import torch

from onehop.parts.absolute import LearnedPositions, SinusoidalPositions


def test_learned_positions_are_rows_by_position_and_padding_gets_row_0():
    part = LearnedPositions(10, 4)
    at = torch.tensor([[-1, 0, 1], [7, 8, 9]])
    y = part(at)
    assert y.shape == (2, 3, 4)
    assert torch.equal(y[1, 2], part.weight[9])
    assert torch.equal(y[0, 0], part.weight[0])
    assert part(at, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_learned_positions_have_one_parameter_called_weight():
    assert {name: p.shape for name, p in LearnedPositions(10, 4).named_parameters()} == {"weight": (10, 4)}


def test_with_an_offset_a_position_has_a_later_row():
    part = LearnedPositions(10, 4, offset=2)
    assert part.weight.shape == (12, 4)
    assert torch.equal(part(torch.tensor([[-1, 0, 9]]))[0], part.weight[[2, 2, 11]])


def test_with_an_offset_sinusoids_are_those_of_a_later_position():
    at = torch.arange(7)[None]
    for waves in ("interleaved", "halves", "fairseq"):
        plain, later = SinusoidalPositions(6, waves=waves), SinusoidalPositions(6, waves=waves, offset=5)
        assert torch.equal(later(at), plain(at + 5))


def test_sinusoids_of_fairseq_are_all_sines_then_all_cosines_up_to_the_last_wavelength_itself():
    y = SinusoidalPositions(6, waves="fairseq")(torch.tensor([[0, 1, 5000]]), dtype=torch.float64)  # (1, 3, 6)
    for t, at in enumerate([0, 1, 5000]):
        for j in range(3):
            angle = at / 10000 ** (j / 2)
            assert y[0, t, j].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert y[0, t, 3 + j].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoids_in_halves_are_the_same_waves_in_another_order():
    at = torch.tensor([[0, 1, 5000]])
    turns, halves = (SinusoidalPositions(6, waves=w)(at, dtype=torch.float64) for w in ("interleaved", "halves"))
    assert torch.equal(halves[..., :3], turns[..., 0::2])
    assert torch.equal(halves[..., 3:], turns[..., 1::2])


def test_sinusoids_are_the_published_formula_interleaved():
    y = SinusoidalPositions(6)(torch.tensor([[0, 1, 5000]]), dtype=torch.float64)  # (1, 3, 6)
    for t, at in enumerate([0, 1, 5000]):
        for j in range(3):
            angle = at / 10000 ** (2 * j / 6)
            assert y[0, t, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert y[0, t, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_a_shift_of_sinusoids_is_a_rotation_that_does_not_depend_on_the_place():
    """The property for which they were chosen: PE(t + s) is a fixed linear function of PE(t)."""
    y = SinusoidalPositions(8)(torch.arange(50).unsqueeze(0), dtype=torch.float64)[0]  # (50, 8)
    shift = 7
    for j in range(4):
        w = shift / 10000 ** (2 * j / 8)
        turn = torch.tensor([[math.cos(w), math.sin(w)], [-math.sin(w), math.cos(w)]], dtype=torch.float64)
        pair = y[:, 2 * j : 2 * j + 2]  # (50, 2)
        torch.testing.assert_close(pair[shift:], pair[:-shift] @ turn.T, rtol=0, atol=1e-12)


def test_sinusoids_for_a_bf16_model_are_exact_values_rounded():
    at = torch.tensor([[257, 1857, 32767]])
    part = SinusoidalPositions(64).bfloat16()
    assert torch.equal(part(at, dtype=torch.bfloat16), part(at, dtype=torch.float64).bfloat16())
    assert part(at).dtype == torch.float32
