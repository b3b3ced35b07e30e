"""Moments and sizes in the texts of the API server."""

import pytest

from wisp_operator.api.quantities import bytes_of
from wisp_operator.core.times import micro_timestamp, seconds_of, timestamp

NOON = 1769860800.0


def test_a_moment_is_written_as_kubernetes_does_and_read_back():
    assert timestamp(NOON + 0.9) == "2026-01-31T12:00:00Z"
    assert micro_timestamp(NOON + 0.25) == "2026-01-31T12:00:00.250000Z"
    assert seconds_of("2026-01-31T12:00:00Z") == NOON
    assert seconds_of("2026-01-31T12:00:00.250000Z") == NOON + 0.25


@pytest.mark.parametrize("none", [None, ""])
def test_no_time_is_none(none):
    assert seconds_of(none) is None


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("24568812Ki", 24568812 << 10),
        ("32Gi", 32 << 30),
        ("1Pi", 1 << 50),
        ("2k", 2000),
        ("5M", 5_000_000),
        ("25769803776", 25769803776),
        ("1288490188800m", 1288490188),  # how the API server writes a fraction of a byte
    ],
)
def test_the_memory_of_a_node_is_read_in_every_unit(text, expect):
    assert bytes_of(text) == expect


@pytest.mark.parametrize("text", ["", "Ki", "1.5Gi", "-1", "12Xi", "1e9"])
def test_what_is_no_whole_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="is not a number of bytes"):
        bytes_of(text)
