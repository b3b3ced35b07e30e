"""Headers of GGUF files: what contradicts the format or the file ends in a sentence, and at once."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_plan.checkpoint.index import FIRST_READ_BYTES, Source
from wisp_plan.errors import CheckpointInvalid, ConfigInvalid, FileTruncated, HeaderInvalid, PlanError
from wisp_plan.gguf import values
from wisp_plan.gguf.header import read_header

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9
F32, F16, Q4_K, Q8_0 = 0, 1, 12, 8
HUGE = (1 << 63) - 1
AT_ONCE_S = 20.0  # of CPU time; without bounds none of these ends


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def header(tensors: int, fields: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + body


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return text(b"a") + struct.pack("<IIQ", ARRAY, kind, count) + body


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def padded(data: bytes, data_bytes: int, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment) + bytes(data_bytes)


def read(data: bytes, file_bytes: int | None = None):
    return read_header(
        Source(
            lambda start, count: data[start : start + count], len(data) if file_bytes is None else file_bytes
        ),
        "m.gguf",
    )


SOUND = header(
    *(2, 3, text(b"n") + struct.pack("<II", UINT32, 7)),
) + (
    text(b"s")
    + struct.pack("<I", STRING)
    + text("né".encode())
    + array(STRING, 2, text(b"x") + text(b""))
    + tensor(b"b", (256, 2), Q4_K, 64)
    + tensor(b"a", (3,), F32, 0)
)


def test_fields_and_tensors_are_read_with_rows_first_and_blocks_counted():
    found = read(padded(SOUND, 64 + 2 * 144))
    assert (found.fields["n"], found.fields["s"], found.fields["a"].decode()) == (7, "né", ["x", ""])
    start = found.header_bytes
    first, second = found.tensors
    assert (first.name, first.dtype, first.shape, first.start, first.end) == (
        "a",
        "F32",
        (3,),
        start,
        start + 12,
    )
    assert (second.dtype, second.shape, second.start) == ("Q4_K", (2, 1), start + 64)
    assert found.file_bytes == second.end == start + 64 + 288
    assert start % 32 == 0


def test_a_long_header_is_read_in_few_requests():
    body = text(b"long") + struct.pack("<IIQ", ARRAY, STRING, 100_000) + text(b"word") * 100_000
    data, reads = padded(header(0, 1, body), 0), []

    def take(start, count):
        reads.append((start, count))
        return data[start : start + count]

    found = read_header(Source(take, len(data)), "m.gguf")
    assert found.fields["long"].count == 100_000
    assert reads[0] == (0, FIRST_READ_BYTES)
    assert len(reads) == 2


def test_another_alignment_moves_the_tensors():
    fields = text(b"general.alignment") + struct.pack("<II", UINT32, 4096)
    found = read(padded(header(1, 1, fields + tensor(b"a", (1,), F32, 0)), 4, 4096))
    assert found.tensors[0].start == 4096


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (header(1 << 20, 0), "announces 1048576 tensors"),
        (header(0, HUGE), "announces 0 tensors and 9223372036854775807 fields"),
        (header(0, 1, text(b"", HUGE)), "truncated or damaged"),
        (header(0, 1, array(UINT8, HUGE)), "truncated or damaged"),
        (header(0, 1, array(STRING, 9000)), "truncated or damaged"),
        (header(0, 1, array(STRING, HUGE)), "more than 10000 strings"),
        (header(0, 1, array(UINT32, HUGE, bytes(1000))), "truncated or damaged"),
        (header(0, 1, array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 100_000)), "a list of values of kind 9"),
        (header(0, 1, text(b"k") + struct.pack("<I", 99)), "a value of kind 99"),
        (header(0, 1, text(b"\xff") + struct.pack("<II", UINT32, 1)), "no UTF-8"),
        (header(0, 2, (text(b"k") + struct.pack("<II", UINT32, 1)) * 2), "the field k twice"),
        (header(1, 0, text(b"t" * 2000)), "a name has 2000|name has 2000"),
        (header(1, 0, text(b"t") + struct.pack("<I", 1 << 30)), "of 1073741824 axes"),
        (header(1, 0, tensor(b"t", (1 << 33, 1 << 33), F32, 0)), "truncated or damaged"),
        (header(1, 0, tensor(b"t", (HUGE,), F32, 0)), "of shape"),
        (header(1, 0, tensor(b"t", (0,), F32, 0)), "of shape"),
        (header(1, 0, tensor(b"t", (1,), F32, HUGE)), "of shape"),
        (header(1, 0, tensor(b"t", (100,), Q4_K, 0)), "no blocks of 256"),
        (padded(header(2, 0, tensor(b"t", (8,), F32, 0) + tensor(b"u", (8,), F32, 4)), 64), "overlaps"),
        (padded(header(2, 0, tensor(b"t", (8,), F32, 0) + tensor(b"t", (8,), F32, 32)), 64), "t twice"),
        (padded(header(1, 0, tensor(b"t", (8,), F32, 0)), 31), "1 B of its tensors are missing"),
        (
            header(0, 1, text(b"general.alignment") + struct.pack("<II", UINT32, 48)),
            "general.alignment 48; expected a power of two",
        ),
        (b"PK" + bytes(100), "is not a GGUF file"),
        (b"GG", "truncated or damaged"),
    ],
)
def test_what_contradicts_the_format_or_the_file_is_refused_at_once(monkeypatch, data, says):
    monkeypatch.setattr(values, "MAX_VALUES", 10_000)
    began_s = time.process_time()
    with pytest.raises(CheckpointInvalid, match=says) as raised:
        read(data)
    assert time.process_time() - began_s < AT_ONCE_S
    assert raised.value.message.endswith((".", "again."))


def test_a_header_without_end_is_read_no_further_than_any_models(monkeypatch):
    monkeypatch.setattr("wisp_plan.gguf.header.MAX_HEADER_BYTES", 1 << 20)
    endless = Source(lambda start, count: (header(0, 1, array(UINT8, 1 << 40)) + bytes(count))[:count], None)
    with pytest.raises(HeaderInvalid, match=r"more than 1\.0 MiB"):
        read_header(endless, "m.gguf")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (header(0, 0, version=77), "of GGUF version 77; versions 2 and 3 can be read"),
        (header(0, 0, version=1), "of GGUF version 1; versions 2 and 3 can be read"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "written for big-endian machines"),
        (header(1, 0, tensor(b"t", (1,), 12345, 0)), "tensor t is stored as type 12345, which is not read"),
        (header(1, 0, tensor(b"t", (128,), 41, 0)), "stored as Q1_0, which is not read; read are F32, F16"),
    ],
)
def test_a_sound_file_that_is_unknown_here_is_not_called_damaged(data, says):
    with pytest.raises(ConfigInvalid, match=says) as raised:
        read(data)
    assert "download" not in raised.value.message.lower()
    assert "damaged" not in raised.value.message


@given(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_read_or_refused_with_a_reason(position, damage):
    data = bytearray(padded(SOUND, 512))
    data[position : position + len(damage)] = damage
    with suppress(PlanError):
        read(bytes(data))


@given(st.integers(0, len(SOUND) - 1))
def test_a_file_that_ends_early_is_truncated(length):
    with pytest.raises(FileTruncated):
        read(SOUND[:length])
