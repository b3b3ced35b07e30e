"""Amounts of bytes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.errors import SizeInvalid
from wisp_plan.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("512B", 512),
        ("512MiB", 512 << 20),
        ("24Gi", 24 << 30),
        ("24gib", 24 << 30),
        ("17.1 GiB", int(17.1 * 2**30)),
        (" 1.5 Ti ", 3 << 39),
        ("1k", 1000),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 10**9),
        ("0.1K", 100),
        ("1PiB", 1 << 50),
    ],
)
def test_both_families_of_units_are_read(text, expect):
    assert parse_size(text) == expect


@pytest.mark.parametrize(
    "text", ["", "MiB", "12X", "-1GiB", "1e9", "1,5GiB", "5iB", "1..5G", "inf", "9" * 21]
)
def test_text_that_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(SizeInvalid, match="512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "expect"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (512 << 20, "512.0 MiB"),
        (int(17.1 * 2**30), "17.1 GiB"),
        (-3 << 30, "-3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_written_in_binary_units(size, expect):
    assert format_size(size) == expect


@given(st.integers(0, 1 << 50))
def test_written_sizes_read_back_about_equal(size):
    assert abs(parse_size(format_size(size)) - size) <= max(1, size * 0.05)
