"""Tensors of a checkpoint, in one file or many, read from the files' headers alone.

Bytes come from the caller's ``read(offset, length) -> bytes``, so that the same code serves a local file
(:mod:`.directory`), an HTTP range request, and a test. No network, no array library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from wisp_plan.checkpoint.header import LENGTH_BYTES, Header, TensorInfo, parse_header, parse_header_length
from wisp_plan.errors import CheckpointMissing, FileTruncated, HeaderInvalid
from wisp_plan.json_object import parse_object, shorten

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 16 << 20
MAX_FILES = 1024
MAX_FILE_CHARACTERS = 200
MAX_TENSORS = 1 << 17
MAX_HEADERS_BYTES = 48 << 20
"""Bytes of all headers of a checkpoint; they are held in memory at a time."""
FIRST_READ_BYTES = 256 << 10
"""Bytes of the first read, before the header's length is known: one round trip suffices for most files."""

EMBEDDINGS, HEAD, PREFIX = "embed_tokens.weight", "lm_head.weight", "model."

ReadBytes = Callable[[int, int], bytes]
"""``read(offset, length)``: ``length`` bytes of a file, fewer only at its end."""


@dataclass(frozen=True, slots=True)
class Source:
    """A safetensors file that can be read in ranges.

    Attributes:
        read: reader of a byte range.
        file_bytes: length of the file, or None when unknown (then it is not checked).
    """

    read: ReadBytes
    file_bytes: int | None = None


@dataclass(frozen=True)
class TensorIndex:
    """The tensors of a checkpoint.

    Attributes:
        headers: header of each file, in the order of the files' names.
    """

    headers: tuple[Header, ...]

    @cached_property
    def by_name(self) -> dict[str, TensorInfo]:
        """Every tensor by its name, as models with a head have it.

        Embedding models are often stored without their head, and without the prefix that it brings; their
        head is the embedding table, in place of one that nobody trained.
        """
        tensors = {tensor.name: tensor for tensor in self}
        if EMBEDDINGS not in tensors or PREFIX + EMBEDDINGS in tensors:
            return tensors
        names = {PREFIX + name: tensor for name, tensor in tensors.items() if name != HEAD}
        names[HEAD] = tensors.get(HEAD, tensors[EMBEDDINGS])
        return {name: replace(tensor, name=name) for name, tensor in names.items()}

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, without their folder."""
        return tuple(header.file for header in self.headers)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(tensor.size_bytes for tensor in self)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files, headers included."""
        return sum(header.file_bytes for header in self.headers)

    @property
    def elements(self) -> int:
        """Elements of all tensors: the parameter count, unless tensors are stored twice."""
        return sum(tensor.elements for tensor in self)

    def __iter__(self) -> Iterator[TensorInfo]:
        for header in self.headers:
            yield from header.tensors

    def __len__(self) -> int:
        return sum(len(header.tensors) for header in self.headers)


def read_source(source: Source, file: str = SINGLE_FILE) -> Header:
    """Read the header of one file.

    Raises:
        HeaderInvalid, FileTruncated: see :func:`wisp_plan.checkpoint.header.parse_header`.
    """
    first = source.read(0, FIRST_READ_BYTES)
    length = parse_header_length(first, file)
    end = LENGTH_BYTES + length
    text = first[LENGTH_BYTES:end]
    if len(text) < length:
        text += source.read(LENGTH_BYTES + len(text), length - len(text))[: length - len(text)]
    if len(text) != length:
        missing = length - len(text)
        raise FileTruncated(
            f"{file}: {missing} bytes of its header are missing; the file is truncated. Download it again.",
            missing_bytes=missing,
        )
    return parse_header(text, file, source.file_bytes)


def read_tensor_index(open_file: Callable[[str], Source], index: bytes | None = None) -> TensorIndex:
    """Read the headers of a checkpoint.

    Args:
        open_file: opener of a file by its name; raises FileNotFoundError when there is none.
        index: contents of ``model.safetensors.index.json``; None for a checkpoint of one file.

    Raises:
        CheckpointMissing: a file is missing.
        HeaderInvalid, FileTruncated: a file or the index is damaged, or they contradict each other.
    """
    if index is None:
        return TensorIndex((read_source(_open(open_file, SINGLE_FILE)),))
    expected = parse_index(index)
    files = sorted(set(expected.values()))
    return combine(read_headers((file, _open(open_file, file)) for file in files), expected)


def read_headers(sources: Iterable[tuple[str, Source]]) -> tuple[Header, ...]:
    """Read the headers of files, (name, source), one after the other.

    Raises:
        HeaderInvalid: together they are larger than any checkpoint's; or as :func:`read_source`.
        FileTruncated: as :func:`read_source`.
    """
    headers, tensors, size_bytes = [], 0, 0
    for file, source in sources:
        header = read_source(source, file)
        tensors, size_bytes = tensors + len(header.tensors), size_bytes + header.header_bytes
        if tensors > MAX_TENSORS or size_bytes > MAX_HEADERS_BYTES:
            raise HeaderInvalid(
                f"the headers up to {shorten(file)} have {tensors} tensors in {size_bytes} bytes; at most "
                f"{MAX_TENSORS} in {MAX_HEADERS_BYTES} are read. Use the model's own repository."
            )
        headers.append(header)
    return tuple(headers)


def _open(open_file: Callable[[str], Source], file: str) -> Source:
    try:
        return open_file(file)
    except FileNotFoundError as error:
        raise CheckpointMissing(
            f"{file} is not there, although the checkpoint needs it. Download the model again."
        ) from error


def parse_index(text: bytes) -> dict[str, str]:
    """Parse ``model.safetensors.index.json``: the file of each tensor, by the tensor's name.

    Raises:
        HeaderInvalid: not such an index, or it names a file outside its own folder.
    """
    if len(text) > MAX_INDEX_BYTES:
        raise HeaderInvalid(
            f"{INDEX_FILE} has more than {MAX_INDEX_BYTES} bytes, unlike any model's. Download it again."
        )
    weight_map = parse_object(text, INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HeaderInvalid(f"{INDEX_FILE} has no weight_map. Download it again.")
    for name, file in weight_map.items():
        if not _is_weights_file(file):
            raise HeaderInvalid(
                f"{INDEX_FILE}: {shorten(name)} lies in '{shorten(file)}'; expected the name of a "
                ".safetensors file in the same folder. Download the index again."
            )
    if (files := len(set(weight_map.values()))) > MAX_FILES:
        raise HeaderInvalid(
            f"{INDEX_FILE} names {files} files; a checkpoint has at most {MAX_FILES}. Download it again."
        )
    return weight_map


def _is_weights_file(file: object) -> bool:
    """Whether an index may name ``file``: printable, and in its own folder."""
    if not isinstance(file, str) or not file.endswith(".safetensors") or len(file) > MAX_FILE_CHARACTERS:
        return False
    return file.isprintable() and "/" not in file and "\\" not in file


def combine(headers: Iterable[Header], expected: dict[str, str] | None = None) -> TensorIndex:
    """Make one index of several files.

    Args:
        headers: headers of the files.
        expected: file of each tensor according to the index, when there is one.

    Raises:
        HeaderInvalid: a tensor is in two files, or not in the one that the index names.
    """
    file_of: dict[str, str] = {}
    headers = tuple(headers)
    for tensor in TensorIndex(headers):
        if tensor.name in file_of:
            raise HeaderInvalid(
                f"tensor {shorten(tensor.name)} is in both {file_of[tensor.name]} and {tensor.file}. Files "
                "of two checkpoints are mixed: download the model into an empty folder."
            )
        file_of[tensor.name] = tensor.file
    for name, file in (expected or {}).items():
        if file_of.get(name) != file:
            where = f"it is in {file_of[name]}" if name in file_of else "it is in none of the files"
            raise HeaderInvalid(
                f"{INDEX_FILE} says that {shorten(name)} is in {file}, but {where}. Files of two "
                "checkpoints are mixed: download the model into an empty folder."
            )
    return TensorIndex(headers)
