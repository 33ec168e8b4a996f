"""Sizes, counts and durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.units import GiB, KiB, MiB, TiB, format_count, format_duration, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("4096b", 4096),
        ("128MiB", 128 * MiB),
        ("128 mib", 128 * MiB),
        ("128M", 128 * MiB),
        ("128MB", 128_000_000),
        (" 1.5 GB ", 1_500_000_000),
        ("0.5k", 512),
        ("2TiB", 2 * TiB),
        ("1PB", 10**15),
        ("0.5EiB", 2**59),
        ("1eb", 10**18),
        ("1kb", 1000),
        ("0.1MB", 100_000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_that_people_write(text, num_bytes):
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "0", "0MiB", "0.0001", "-1MiB", "1e3", "1,000", "12 MiBs", "1.MiB", "nan", "inf", "٣MiB", "9" * 400],
)
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@given(st.integers(min_value=1, max_value=2**60))
def test_a_shown_size_is_read_back_within_its_rounding(num_bytes):
    assert parse_size(format_size(num_bytes)) == pytest.approx(num_bytes, rel=0.005)


@given(st.integers(min_value=1, max_value=2**53))
def test_a_shown_size_is_short(num_bytes):
    number, unit = format_size(num_bytes).split()
    assert len(number) <= 4
    assert unit == "EiB" or float(number) < 1024


@given(st.lists(st.integers(min_value=0, max_value=2**50), min_size=2))
def test_larger_sizes_never_look_smaller(sizes):
    units = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB, "PiB": 1024 * TiB}

    def shown(num_bytes):
        number, unit = format_size(num_bytes).split()
        return float(number) * units[unit]

    ordered = sorted(sizes)
    assert sorted(map(shown, ordered)) == list(map(shown, ordered))


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * KiB, "10.0 KiB"),
        (100 * KiB, "100 KiB"),
        (MiB - 1, "1.00 MiB"),
        (GiB - 1, "1.00 GiB"),
        (-2048, "-2.00 KiB"),
        (5000 * TiB, "4.88 PiB"),
    ],
)
def test_sizes_that_people_read(num_bytes, text):
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (100 * 3600, "100 h 0 min"),
    ],
)
def test_durations_that_people_read(seconds, text):
    assert format_duration(seconds) == text


def test_counts_that_people_read():
    assert format_count(336776) == "336,776"
