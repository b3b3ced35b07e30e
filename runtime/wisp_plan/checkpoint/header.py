"""Parse the header of a safetensors file: its tensors and the ranges of their bytes.

Pure: bytes in, dataclasses out. Every entry of the header is checked against the format, against the
other tensors and, where it is known, against the length of the file.

The format: 8 bytes little-endian length, that much JSON, then the tensors without a gap.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeGuard

from wisp_plan.errors import FileTruncated, HeaderInvalid
from wisp_plan.json_object import parse_object, shorten
from wisp_plan.units import format_size

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20
"""A longer header is refused unread: it would describe 100,000 tensors. The format allows 100 MB."""
MAX_DIMENSIONS = 16
MAX_NAME_CHARACTERS = 1024

DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file.

    Attributes:
        name: tensor name, e.g. ``model.layers.0.mlp.up_proj.weight``.
        dtype: safetensors' name of the dtype, e.g. ``BF16``.
        shape: row-major; empty for a scalar.
        start, end: byte range ``file[start:end]``, counted from the file's first byte.
        file: file name, without its folder.
        paired_rows: rows of a head, if they are stored in pairs: row 2 i + h of the file is row h Dh / 2 + i.
            0: they are not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    file: str
    paired_rows: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes it occupies in the file."""
        return self.end - self.start

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Header of one safetensors file.

    Attributes:
        file: file name, without its folder.
        tensors: tensors in the order of their bytes.
        file_bytes: required length of the file.
        metadata: free text of the writer.
    """

    file: str
    tensors: tuple[TensorInfo, ...]
    file_bytes: int
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def header_bytes(self) -> int:
        """Bytes before the first tensor: the header and its length."""
        return self.tensors[0].start if self.tensors else self.file_bytes


def parse_header_length(prefix: bytes, file: str) -> int:
    """Read the length of the JSON from the first 8 bytes.

    Raises:
        FileTruncated: fewer than 8 bytes.
        HeaderInvalid: a length that no safetensors file has.
    """
    if len(prefix) < LENGTH_BYTES:
        missing = LENGTH_BYTES - len(prefix)
        raise FileTruncated(_truncated(file, missing, "the length of its header"), missing_bytes=missing)
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise HeaderInvalid(
            f"{file}: its first 8 bytes announce a header of {length} bytes (2 to {MAX_HEADER_BYTES} are "
            "possible). It is not a safetensors file, or it is damaged: download it again."
        )
    return length


def parse_header(text: bytes, file: str, file_bytes: int | None = None) -> Header:
    """Parse and check the JSON of a header.

    Args:
        text: the JSON, of the length that :func:`parse_header_length` returned.
        file: file name, for the result and for messages.
        file_bytes: length of the file, or None when unknown.

    Raises:
        HeaderInvalid: it contradicts the format or itself, or the file is too long.
        FileTruncated: the file is too short.
    """
    entries = parse_object(text, f"{file}: its header")
    metadata = _metadata(entries.pop("__metadata__", {}), file)
    data_start = LENGTH_BYTES + len(text)
    tensors = sorted(
        (_tensor(name, entry, file, data_start) for name, entry in entries.items()),
        key=lambda tensor: (tensor.start, tensor.end),
    )
    end = _check_gapless(tensors, data_start, file)
    if file_bytes is not None:
        check_length(file, expected=end, actual=file_bytes)
    return Header(file, tuple(tensors), end, metadata)


def check_length(file: str, *, expected: int, actual: int) -> None:
    """Compare a file's length with its header.

    Raises:
        FileTruncated: too short. HeaderInvalid: too long.
    """
    if actual < expected:
        missing = expected - actual
        raise FileTruncated(_truncated(file, missing, "its tensors"), missing_bytes=missing)
    if actual > expected:
        raise HeaderInvalid(
            f"{file}: {actual - expected} bytes follow the last tensor. It is damaged: download it again."
        )


def _truncated(file: str, missing_bytes: int, what: str) -> str:
    amount = f"{missing_bytes} bytes"
    if missing_bytes >= 1024:
        amount += f" ({format_size(missing_bytes)})"
    return f"{file}: {amount} of {what} are missing; the file is truncated. Download it again."


def _metadata(value: object, file: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HeaderInvalid(f"{file}: __metadata__ is not an object of strings. Write the file again.")
    return value


def _tensor(name: str, entry: object, file: str, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _bad(file, name, f"is described by a {type(entry).__name__}; expected an object")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _bad(
            file, name, f"has a name of {len(name)} characters; at most {MAX_NAME_CHARACTERS} are read"
        )
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _bad(file, name, f"has the unknown dtype {shorten(dtype)}; known: {', '.join(DTYPE_BITS)}")
    if not _is_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise _bad(file, name, f"has the shape {shorten(shape)}; expected at most 16 whole numbers")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(file, name, f"has the data_offsets {shorten(offsets)}; expected [start, end]")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (offsets[1] - offsets[0]) * 8:
        claim = f"is {dtype}{shape}, which is {bits / 8:g} bytes, but has {offsets[1] - offsets[0]} bytes"
        raise _bad(file, name, claim)
    return TensorInfo(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1], file)


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(count) is int and 0 <= count < 1 << 62 for count in value)


def _check_gapless(tensors: list[TensorInfo], data_start: int, file: str) -> int:
    """Check that each tensor starts at the end of the one before it; return the end of the last."""
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            relation = "overlaps the one before it" if tensor.start < position else "leaves a gap before it"
            claim = f"starts at byte {tensor.start}, not {position}: it {relation}"
            raise _bad(file, tensor.name, claim)
        position = tensor.end
    return position


def _bad(file: str, name: str, claim: str) -> HeaderInvalid:
    return HeaderInvalid(f"{file}: tensor {shorten(name)} {claim}. The file is damaged: download it again.")
