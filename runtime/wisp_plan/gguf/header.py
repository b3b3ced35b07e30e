"""Header of a GGUF file: metadata, and each tensor's name, type, shape and bytes.

Pure: bytes come from the caller's ``read(offset, length)``. Everything is checked against the format and the
length of the file before it is used.
Source of the format: ``docs/gguf.md`` of ggml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wisp_plan.checkpoint.header import MAX_NAME_CHARACTERS, TensorInfo
from wisp_plan.checkpoint.index import FIRST_READ_BYTES, MAX_TENSORS, Source
from wisp_plan.errors import ConfigInvalid, FileTruncated, HeaderInvalid
from wisp_plan.gguf.tensor_types import BLOCK_TYPES, OTHER_TYPES, PLAIN_TYPES, TYPES_BY_NUMBER
from wisp_plan.gguf.values import Cursor, MoreNeeded, Value
from wisp_plan.json_object import shorten
from wisp_plan.units import format_size

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 128 << 20
"""A longer header is refused; that of a vocabulary of 262,144 tokens and its merges has some 16 MB."""

MAX_FIELDS = 1 << 16
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
_GROWTH = 8
_DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Header of one file.

    Attributes:
        file: name of the file, without its folder.
        fields: metadata by key.
        tensors: tensors in the order of their bytes, under ggml's names. The last axis of a quantized one
            counts blocks.
        header_bytes: bytes before the first tensor.
        file_bytes: required length of the file.
    """

    file: str
    fields: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    header_bytes: int
    file_bytes: int


def read_header(source: Source, file: str) -> GGUFHeader:
    """Read the header of one file.

    Raises:
        HeaderInvalid, FileTruncated: it is no GGUF file, or damaged.
        ConfigInvalid: its version, or a tensor's type, is not read.
    """
    raw = source.read(0, FIRST_READ_BYTES)
    while True:
        try:
            return _parse(raw, file, source.file_bytes)
        except MoreNeeded as missing:
            _check_end(missing.end, file, source.file_bytes)
            wanted = min(max(_GROWTH * len(raw), missing.end), MAX_HEADER_BYTES)
            more = source.read(len(raw), wanted - len(raw))
            if not more:
                raise _truncated(file, missing.end - len(raw), "its header") from None
            raw += more


def _check_end(end: int, file: str, file_bytes: int | None) -> None:
    """Refuse a header that would end behind the file, or behind any model's."""
    if file_bytes is not None and end > file_bytes:
        raise _truncated(file, end - file_bytes, "its header")
    if end > MAX_HEADER_BYTES:
        raise HeaderInvalid(
            f"{file}: its header has more than {format_size(MAX_HEADER_BYTES)}, unlike any model's. It is "
            "damaged: download it again."
        )


def _parse(raw: bytes, file: str, file_bytes: int | None) -> GGUFHeader:
    cursor = Cursor(raw, file)
    _check_version(cursor, file)
    tensors, fields = cursor.count(), cursor.count()
    if tensors > MAX_TENSORS or fields > MAX_FIELDS:
        raise cursor.damaged(
            f"announces {tensors} tensors and {fields} fields; {MAX_TENSORS} and {MAX_FIELDS} are possible"
        )
    metadata = _read_fields(cursor, fields)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.damaged(f"has the general.alignment {shorten(alignment)}; expected a power of two")
    listed = [_read_tensor(cursor, file) for _ in range(tensors)]
    start = -(-cursor.position // alignment) * alignment
    located = sorted((_located(info, start) for info in listed), key=lambda info: (info.start, info.end))
    end = _check_order(cursor, located, start)
    if file_bytes is not None and end > file_bytes:
        raise _truncated(file, end - file_bytes, "its tensors")
    return GGUFHeader(file, metadata, tuple(located), start, end)


def _check_version(cursor: Cursor, file: str) -> None:
    if cursor.take(len(MAGIC)) != MAGIC:
        raise HeaderInvalid(f"{file} is not a GGUF file. Name one, or download it again.")
    version = cursor.take(4)
    number = int.from_bytes(version, "little")
    if int.from_bytes(version, "big") in VERSIONS:
        raise ConfigInvalid(
            f"{file} was written for big-endian machines, and is not read. Use one for little-endian ones."
        )
    if number not in VERSIONS:
        raise ConfigInvalid(
            f"{file} is of GGUF version {number}; versions {' and '.join(map(str, VERSIONS))} can be read. "
            "Use a file of one."
        )


def _read_fields(cursor: Cursor, count: int) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for _ in range(count):
        key = cursor.text()
        if key in fields:
            raise cursor.damaged(f"has the field {shorten(key)} twice")
        fields[key] = cursor.value()
    return fields


def _read_tensor(cursor: Cursor, file: str) -> TensorInfo:
    """Read the description of a tensor; its ``start`` and ``end`` count from the first tensor's byte."""
    name = cursor.text()
    if len(name) > MAX_NAME_CHARACTERS:
        raise cursor.damaged(f"has a tensor whose name has {len(name)} characters")
    dimensions = cursor.kind()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(f"has the tensor {shorten(name)} of {dimensions} axes")
    shape = tuple(cursor.count() for _ in range(dimensions))[::-1]
    number, offset = cursor.kind(), cursor.count()
    if not all(shape) or max(*shape, offset) >= 1 << 48:
        raise cursor.damaged(f"has the tensor {shorten(name)} of shape {list(shape)} at {offset}")
    dtype = PLAIN_TYPES.get(number)
    if dtype is not None:
        return TensorInfo(name, dtype, shape, offset, offset + math.prod(shape) * _DTYPE_BYTES[dtype], file)
    if number not in TYPES_BY_NUMBER:
        raise _not_read(file, name, number)
    block = TYPES_BY_NUMBER[number]
    if shape[-1] % block.weights:
        raise cursor.damaged(
            f"has the tensor {shorten(name)} in rows of {shape[-1]}, which are no blocks of {block.weights}"
        )
    units = (*shape[:-1], shape[-1] // block.weights)
    return TensorInfo(name, block.name, units, offset, offset + math.prod(units) * block.size_bytes, file)


def _not_read(file: str, name: str, number: int) -> ConfigInvalid:
    known = OTHER_TYPES.get(number, f"type {number}")
    return ConfigInvalid(
        f"{file}: the tensor {shorten(name)} is stored as {known}, which is not read; read are "
        f"{', '.join((*PLAIN_TYPES.values(), *BLOCK_TYPES))}. Use a file of another quantization, such as "
        "Q8_0 or Q4_K_M."
    )


def _located(info: TensorInfo, start: int) -> TensorInfo:
    return TensorInfo(info.name, info.dtype, info.shape, start + info.start, start + info.end, info.file)


def _check_order(cursor: Cursor, tensors: list[TensorInfo], start: int) -> int:
    """Check that no tensor overlaps another, and that names differ; return the end of the last."""
    names, end = set[str](), start
    for info in tensors:
        if info.start < end:
            raise cursor.damaged(f"has the tensor {shorten(info.name)}, which overlaps the one before it")
        if info.name in names:
            raise cursor.damaged(f"has the tensor {shorten(info.name)} twice")
        names.add(info.name)
        end = info.end
    return end


def _truncated(file: str, missing_bytes: int, part: str) -> FileTruncated:
    return FileTruncated(
        f"{file} is truncated or damaged: {format_size(missing_bytes)} of {part} are missing; "
        "download it again.",
        missing_bytes=missing_bytes,
    )
