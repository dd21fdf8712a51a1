import pytest

from onehop.base.units import human_bytes, human_count, human_flops, human_time


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (1_500_000, "1.5 MB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),  # never "1e+03 kB"
        (141e9, "141 GB"),
        (2.5e18, "2500 PB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_bytes_are_written_with_three_digits_and_a_decimal_unit(n, text):
    assert human_bytes(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1_240_000, "1.24M"),
        (999_999, "1M"),
        (7e9, "7B"),
        (15e12, "15T"),
        (4.2e15, "4200T"),
        (1.5255e19, "1.53e19"),
    ],
)
def test_counts_are_written_with_three_digits_and_a_suffix(n, text):
    assert human_count(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 FLOP"),
        (393_000, "393 kFLOP"),
        (481e9, "481 GFLOP"),  # giga, not the billions of a count
        (989.4e12, "989 TFLOP"),
        (2.25e15, "2.25 PFLOP"),
        (1e21, "1e21 FLOP"),
        (3.14e23, "3.14e23 FLOP"),
    ],
)
def test_flops_are_written_with_the_prefixes_of_units(n, text):
    assert human_flops(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (42, "42 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_times_are_written_in_the_two_largest_units(seconds, text):
    assert human_time(seconds) == text
