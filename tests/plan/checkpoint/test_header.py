"""Headers of safetensors files: what the reference writes we read, what is damaged we refuse."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from wisp_plan.checkpoint.header import MAX_HEADER_BYTES, parse_header_length
from wisp_plan.checkpoint.index import FIRST_READ_BYTES, Source, read_source
from wisp_plan.errors import CheckpointInvalid, FileTruncated, HeaderInvalid

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U16": "<u2", "I8": "i1", "BOOL": "?"}


def source_of(data: bytes, file_bytes: int | None = None) -> Source:
    return Source(lambda offset, length: data[offset : offset + length], file_bytes)


def read(data: bytes) -> Any:
    return read_source(source_of(data, len(data)))


def read_or_refuse(data: bytes) -> Any:
    """The header, or None when it is refused with a message that can be printed; no other error passes."""
    try:
        return read(data)
    except CheckpointInvalid as error:
        error.message.encode()
        return None


def file_of(header: object, body_bytes: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body_bytes)


def tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=8)
metadata = st.none() | st.dictionaries(names, names, min_size=1, max_size=3)  # of {} it makes broken JSON


@given(tensors, metadata)
def test_files_of_the_reference_implementation_are_read_unchanged(tensors, metadata):
    arrays = {name: np.zeros(shape, DTYPES[dtype]) for name, (dtype, shape) in tensors.items()}
    for index, array in enumerate(arrays.values()):
        array[...] = index % 2  # so that the bytes of one tensor differ from its neighbours'
    data = save(arrays, metadata)
    header = read(data)
    described = {info.name: (info.dtype, info.shape) for info in header.tensors}
    assert described == {name: (dtype, shape) for name, (dtype, shape) in tensors.items()}
    assert header.metadata == (metadata or {})
    assert header.file_bytes == len(data)
    for info in header.tensors:
        assert data[info.start : info.end] == arrays[info.name].tobytes()
        assert info.elements == arrays[info.name].size
        assert info.size_bytes == arrays[info.name].nbytes


@given(tensors, st.integers(0, 1 << 16), st.integers(1, 255))
def test_one_flipped_byte_gives_a_header_or_our_error(tensors, position, change):
    data = bytearray(save({name: np.zeros(shape, DTYPES[dtype]) for name, (dtype, shape) in tensors.items()}))
    position %= len(data)
    data[position] ^= change
    header = read_or_refuse(bytes(data))
    assert header is None or header.file_bytes == len(data)


@given(st.binary(max_size=200))
def test_random_bytes_give_our_error(data):
    with pytest.raises(CheckpointInvalid):
        read(data + b"\xff")  # never a whole file: its last byte is in no header and no tensor


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F4", "U8", "Q9"]) | json_values,
        "shape": st.lists(st.integers(-1, 1 << 70), max_size=20) | json_values,
        "data_offsets": st.lists(st.integers(-1, 1 << 70), max_size=3) | json_values,
    },
)


@given(st.dictionaries(st.text(max_size=12) | st.just("__metadata__"), entries | json_values, max_size=4))
def test_any_json_object_gives_a_header_or_our_error(header):
    accepted = read_or_refuse(file_of(header))
    assert accepted is None or all(info.size_bytes == 0 for info in accepted.tensors)


@given(tensors.filter(bool), st.data())
def test_the_error_of_a_truncated_file_has_the_missing_bytes(tensors, data):
    whole = save({name: np.zeros(shape, DTYPES[dtype]) for name, (dtype, shape) in tensors.items()})
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FileTruncated) as caught:
        read(whole[:kept])
    header_bytes = 8 + int.from_bytes(whole[:8], "little")
    end = 8 if kept < 8 else header_bytes if kept < header_bytes else len(whole)
    assert caught.value.missing_bytes == end - kept
    assert str(end - kept) in caught.value.message


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"{ ", "is not JSON"),
        (b"[]", "a JSON list"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),  # deeper than the parser goes
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON"),  # more digits than Python converts
        ({"a": 3}, "tensor a is described by a int"),
        ({"a": {}}, "unknown dtype None"),
        ({"a": tensor("Q4")}, "unknown dtype Q4; known: F4"),
        ({"a": tensor(["F32"])}, "unknown dtype"),
        ({"a": tensor(shape=None)}, "has the shape None"),
        ({"a": tensor(shape=[-2])}, "has the shape [-2]"),
        ({"a": tensor(shape=[-1, -1, 2])}, "has the shape [-1, -1, 2]"),  # whose product is as expected
        ({"a": tensor(shape=[2.0])}, "has the shape [2.0]"),
        ({"a": tensor(shape=[True, 2])}, "has the shape [True, 2]"),
        ({"a": tensor(shape=[1] * 17)}, "at most 16"),
        ({"a": tensor(shape=[1 << 70])}, "has the shape"),
        ({"a": tensor(shape=[1 << 61] * 16)}, "but has 8 bytes"),  # overflows no counter of ours
        ({"a": tensor(offsets=[0])}, "data_offsets [0]"),
        ({"a": tensor(offsets=[8, 0])}, "data_offsets [8, 0]"),
        ({"a": tensor(offsets=[-8, 0])}, "data_offsets [-8, 0]"),
        ({"a": tensor(offsets="08")}, "data_offsets 08"),
        ({"a": tensor(shape=[3])}, "is F32[3], which is 12 bytes, but has 8 bytes"),
        ({"a": tensor("F4", [3], [0, 2])}, "which is 1.5 bytes"),
        ({"a": tensor(offsets=[4, 12])}, "leaves a gap before it"),
        ({"a": tensor(), "b": tensor(offsets=[4, 12])}, "tensor b starts at byte"),
        ({"a": tensor(), "b": tensor()}, "it overlaps the one before it"),
        ({"a": tensor(), "b": tensor(offsets=[12, 20])}, "leaves a gap before it"),
        ({"__metadata__": {"a": 1}}, "__metadata__ is not an object of strings"),
        ({"__metadata__": []}, "__metadata__ is not an object of strings"),
        ({"a": tensor(offsets=[0, 8])}, "9 bytes follow the last tensor"),
        (json.dumps({"\ud800": tensor()}).encode(), "\\ud800"),  # a name that cannot be printed
        (json.dumps({"__metadata__": {"a": "\ud800"}}).encode(), "\\ud800"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(header, said):
    with pytest.raises(HeaderInvalid) as caught:
        read(file_of(header, body_bytes=17))
    assert said in caught.value.message
    assert caught.value.message.startswith("model.safetensors: ")
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, (1 << 64) - 1])
def test_an_impossible_header_length_is_refused_before_anything_is_read(length):
    with pytest.raises(HeaderInvalid, match=f"header of {length} bytes"):
        parse_header_length(length.to_bytes(8, "little"), "a.safetensors")


@pytest.mark.parametrize(
    ("dtype", "shape", "size"), [("F4", [4], 2), ("F6_E2M3", [4], 3), ("F8_E4M3", [], 1)]
)
def test_dtypes_below_a_byte_count_in_bits(dtype, shape, size):
    (info,) = read(file_of({"a": tensor(dtype, shape, [0, size])}, size)).tensors
    assert (info.size_bytes, info.dtype) == (size, dtype)


def test_headers_may_be_padded_with_spaces():
    text = json.dumps({"a": tensor()}).encode()
    header = read(file_of(text + b" " * 7, body_bytes=8))
    assert header.tensors[0].start == 8 + len(text) + 7


def test_a_header_longer_than_the_first_read_takes_one_more():
    reads = []
    arrays = {f"{'x' * 50}{index}": np.zeros(1, "<f4") for index in range(4000)}
    data = save(arrays)

    def read_some(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    header = read_source(Source(read_some, len(data)))
    assert len(header.tensors) == 4000
    header_bytes = 8 + int.from_bytes(data[:8], "little")
    assert reads == [(0, FIRST_READ_BYTES), (FIRST_READ_BYTES, header_bytes - FIRST_READ_BYTES)]


def test_without_the_file_length_the_header_still_gives_it():
    data = save({"a": np.zeros(100, "<f4")})
    header = read_source(source_of(data[:-50], None))
    assert header.file_bytes == len(data)


@given(st.dictionaries(st.text(max_size=5), entries, max_size=3), st.integers(0, 64))
def test_whatever_we_accept_the_reference_accepts_too(header, body_bytes):
    data = file_of(header, body_bytes)
    accepted = read_or_refuse(data)
    if accepted is not None:
        assert {name for name, _ in safetensors.deserialize(data)} == {info.name for info in accepted.tensors}
