"""Dropout is a pure function of where it falls."""

import pytest
import torch

from onehop.parts.dropout import DropKey, dropout, keep


def test_each_element_stays_with_the_asked_probability_in_rows_and_in_columns():
    kept = keep(DropKey.of(1), 0.3, torch.arange(1000).unsqueeze(1), torch.arange(1000)).float()
    assert kept.mean().item() == pytest.approx(0.7, abs=0.002)  # a million draws: standard deviation 0.0005
    for means in (kept.mean(0), kept.mean(1)):  # a thousand draws each: 0.0145; six of these
        assert (means - 0.7).abs().max() < 0.087


def test_neighbours_in_any_direction_fall_independently():
    """Correlations of a million pairs have a standard deviation of 0.001."""
    kept = keep(DropKey.of(2), 0.5, torch.arange(1000).unsqueeze(1), torch.arange(1000)).float() * 2 - 1
    for a, b in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept[1:, 1:], kept[:-1, :-1])):
        assert abs((a * b).mean().item()) < 0.006


def test_an_element_falls_alike_in_the_whole_and_in_a_tile():
    key, i, j = DropKey.of(7, 3), torch.arange(20).unsqueeze(1), torch.arange(30)
    whole = keep(key, 0.5, i, j)
    assert torch.equal(keep(key, 0.5, i[5:9], j[11:23]), whole[5:9, 11:23])


def test_other_places_in_the_tree_fall_otherwise():
    index = torch.arange(4096)
    draws = [keep(DropKey.of(*path), 0.5, index) for path in ((1,), (2,), (1, 0), (1, 1), (0, 1), (1, 1, 0))]
    for n, a in enumerate(draws):
        for b in draws[:n]:
            assert (a == b).float().mean().item() == pytest.approx(0.5, abs=0.05)  # six standard deviations


def test_a_key_is_its_path_and_the_same_on_every_machine():
    assert DropKey.of(1, 2, 3).value == DropKey.of(1).at(2).at(3).value
    assert DropKey.of(1, 2, 3).value.item() == EXPECTED_KEY
    assert keep(DropKey.of(1, 2, 3), 0.5, torch.arange(16)).int().tolist() == EXPECTED_BITS


EXPECTED_KEY = 980552453
EXPECTED_BITS = [1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0]


def by_hand(*path: int) -> int:
    """The same hash in whole numbers of any size, kept to 32 bits."""
    bits = 0
    for n, part in enumerate(path):
        bits = (bits * 0x9E3779B1 + part + (0x7F4A7C15 if n < len(path) - 1 else 0)) & 0xFFFFFFFF
        bits = (bits ^ (bits >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
        bits = (bits ^ (bits >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
        bits ^= bits >> 16
    return bits


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**40 + 7])
def test_bits_are_those_of_the_published_hash(seed):
    """The hash as 32 bits of an int32, of which those at or above the rate stay."""
    stays = keep(DropKey.of(seed, 5), 0.25, torch.arange(200)).tolist()
    for j, stay in enumerate(stays):
        signed = (by_hand(seed, 5, j) + 2**31) % 2**32 - 2**31
        assert stay == (signed >= 2**30 - 2**31)


def test_what_stays_is_scaled_so_that_the_mean_stays():
    x = torch.ones(200, 500)
    y = dropout(x, 0.2, DropKey.of(3))
    assert set(y.unique().tolist()) == {0.0, 1.25}
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)  # a hundred thousand draws: standard deviation 0.0016


def test_no_key_or_no_rate_changes_nothing():
    x = torch.ones(3)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, DropKey.of(1)) is x


def test_the_gradient_falls_where_the_value_fell():
    x = torch.randn(50, requires_grad=True)
    y = dropout(x, 0.5, DropKey.of(4))
    y.sum().backward()
    assert torch.equal(x.grad, dropout(torch.ones(50), 0.5, DropKey.of(4)))
    assert torch.equal(x.grad == 0, y == 0)
