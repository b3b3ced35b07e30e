"""A model in GGUF, read from the headers of its files: dimensions, tensors, and where its tokenizer lies."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from wisp_plan.checkpoint.header import Header, TensorInfo
from wisp_plan.checkpoint.index import Source, TensorIndex, combine
from wisp_plan.errors import CheckpointMissing, ConfigInvalid
from wisp_plan.families.config import parse_config
from wisp_plan.gguf.config import ROPE_FACTORS, Family, config, family_of, generation_config, unpack_factors
from wisp_plan.gguf.header import GGUFHeader, read_header
from wisp_plan.gguf.metadata import Metadata
from wisp_plan.gguf.tensor_names import renamed
from wisp_plan.quantization.gguf import quantization_of
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec

_MAX_FACTOR_BYTES = 4096

OpenFile = Callable[[Path], Source]
"""``open_file(path)``: a file that can be read in ranges; raises OSError."""


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A model in GGUF.

    Attributes:
        folder: folder of its files.
        metadata: fields of its first file.
        config: content of a ``config.json`` that says the same.
        family: its family.
        spec: the model; norms that the file stores one larger are not zero-centred here.
        tensors: its tensors, under the names of its family's checkpoints.
    """

    folder: Path
    metadata: Metadata
    config: dict[str, object]
    family: Family
    spec: ModelSpec
    tensors: TensorIndex

    @property
    def generation_config(self) -> dict[str, object]:
        """Content of a ``generation_config.json`` that says the same."""
        return generation_config(self.metadata)


def convert_command(file: Path) -> str:
    """Return the command that converts ``file`` into a folder beside it, named like it."""
    return f"wisp-runtime convert {shlex.quote(str(file))} {shlex.quote(str(file.with_suffix('')))}"


def read_model(files: Sequence[Path], open_file: OpenFile) -> GGUFModel:
    """Read the headers of a model's files.

    Args:
        files: result of :func:`.files.files_of`, not empty.
        open_file: opener of a file.

    Raises:
        CheckpointMissing: a file cannot be opened.
        HeaderInvalid, FileTruncated: it is no GGUF file, or damaged.
        ConfigInvalid: a model, a tensor's type or a scaling of positions that is not read.
    """
    try:
        states = tuple(
            (path, status.st_mtime_ns, status.st_size) for path in files if (status := path.stat())
        )
        return _read(states, open_file)
    except OSError as error:
        raise CheckpointMissing(f"{error.filename or files[0]} cannot be read: {error.strerror}.") from error


@lru_cache(maxsize=1)  # a start asks for config, tensors and tokenizer in turn
def _read(files: tuple[tuple[Path, int, int], ...], open_file: OpenFile) -> GGUFModel:
    sources = [open_file(path) for path, *_ in files]
    headers = [read_header(source, path.name) for source, (path, *_) in zip(sources, files, strict=True)]
    listed = {info.name: info for header in headers for info in header.tensors}
    metadata = Metadata(headers[0], listed)
    family = family_of(metadata)
    settings = config(metadata, _factors(listed.get(ROPE_FACTORS), headers, sources))
    try:
        spec = parse_config(settings)
    except ConfigInvalid as error:
        message = f"{metadata.file}, read as a config.json: {error.message.removeprefix('config.json: ')}"
        raise ConfigInvalid(message, key=error.key) from error
    head_size = spec.mixers(AttentionSpec)[0].head_size
    index = combine(
        Header(header.file, tuple(renamed(header.tensors, family, head_size)), header.file_bytes)
        for header in headers
    )
    spec = replace(spec, quantization=quantization_of(index))
    if family.are_norms_raised:
        spec = _with_plain_norms(spec)
    return GGUFModel(files[0][0].parent, metadata, settings, family, spec, index)


def _with_plain_norms(spec: ModelSpec) -> ModelSpec:
    layers = (replace(layer, norms=replace(layer.norms, is_zero_centred=False)) for layer in spec.layers)
    final_norm = replace(spec.final_norm, is_zero_centred=False)
    return replace(spec, layers=tuple(layers), final_norm=final_norm)


def _factors(
    info: TensorInfo | None, headers: Sequence[GGUFHeader], sources: Sequence[Source]
) -> tuple[float, ...]:
    """Read the factors of RoPE's frequencies, if the model has any."""
    if info is None:
        return ()
    if info.dtype != "F32" or info.size_bytes > _MAX_FACTOR_BYTES:
        raise ConfigInvalid(
            f"{info.file}: {ROPE_FACTORS} is {info.dtype}{list(info.shape)}; expected F32 of a head's pairs. "
            "Use another file."
        )
    source = next(source for header, source in zip(headers, sources, strict=True) if header.file == info.file)
    return unpack_factors(source.read(info.start, info.size_bytes))
