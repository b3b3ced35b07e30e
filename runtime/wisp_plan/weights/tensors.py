"""Comparison of a checkpoint's tensors with those that its model's weights are declared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.quantization.config import GGUF
from wisp_plan.quantization.stored_format import VALUES
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.weight import COMPUTABLE_DTYPES, Role, WeightSpec
from wisp_plan.weights.declaration import declare
from wisp_plan.weights.stored import as_stored, part_sources
from wisp_plan.weights.unread import neutral_tensors

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that a model needs: its name, its shape, its role, and the dtypes that it may have."""

    name: str
    shape: tuple[int, ...]
    role: Role
    dtypes: tuple[str, ...] = COMPUTABLE_DTYPES


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint compared with the needs of its model.

    Attributes:
        missing: names of tensors that are not there.
        mismatched: (name, shape or dtype that it has, the one that it must have).
        extra: names of tensors that the model does not use (:mod:`.unread`).
    """

    missing: tuple[str, ...]
    mismatched: tuple[tuple[str, str, str], ...]
    extra: tuple[str, ...]

    @property
    def is_usable(self) -> bool:
        """Whether the model can be built from the checkpoint."""
        return not self.missing and not self.mismatched


def expected_tensors(spec: ModelSpec) -> Iterator[ExpectedTensor]:
    """List every tensor of an unquantized checkpoint of ``spec``, from the embedding to the head."""
    return tensors_of(declare(spec))


def tensors_of(weights: Iterable[WeightSpec]) -> Iterator[ExpectedTensor]:
    """List the tensors that ``weights`` are read from, each once."""
    listed = set()
    for tensor in (tensor for weight in weights for tensor in _tensors_of(weight)):
        if tensor.name not in listed:
            listed.add(tensor.name)
            yield tensor


def _tensors_of(weight: WeightSpec) -> Iterator[ExpectedTensor]:
    for source in weight.sources:
        if source.stored is None:
            yield ExpectedTensor(source.tensor, source.shape, weight.role, source.dtypes)
            continue
        for stored in part_sources(weight, source):
            role: Role = weight.role if stored.part.name == VALUES else "scale"
            yield ExpectedTensor(stored.tensor, stored.shape, role, stored.part.dtypes)


def compare(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Comparison:
    """Compare the tensors of a checkpoint with the needs of ``spec``, in whichever format they are.

    ``rotary_emb.inv_freq``, which old checkpoints store, and a stored copy of a tied head count as neither
    missing nor extra.
    """
    missing, mismatched, used = [], [], set()
    for wanted in tensors_of(as_stored(declare(spec), tensors, spec.quantization)):
        used.add(wanted.name)
        stored = tensors.get(wanted.name)
        if stored is None:
            missing.append(wanted.name)
        elif not _is_shaped(stored, wanted):
            mismatched.append((wanted.name, str(list(stored.shape)), str(list(wanted.shape))))
        elif stored.dtype not in wanted.dtypes:
            mismatched.append((wanted.name, stored.dtype, " or ".join(wanted.dtypes)))
    extra = [name for name in tensors if name not in used and not _is_harmless(name)]
    return Comparison(tuple(missing), tuple(mismatched), tuple(sorted(extra)))


def _is_shaped(stored: TensorInfo, wanted: ExpectedTensor) -> bool:
    """Compare shapes; exporters store scales with more or fewer axes of 1."""
    if wanted.role != "scale":
        return stored.shape == wanted.shape
    return _squeezed(stored.shape) == _squeezed(wanted.shape)


def _squeezed(shape: tuple[int, ...]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def _is_harmless(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Comparison:
    """Compare like :func:`compare`, and refuse a checkpoint from which the model cannot be built.

    Raises:
        TensorsMismatch: tensors are missing, have another shape or a dtype we cannot compute with, or would
            change weights but are not read.
    """
    result = compare(spec, tensors)
    if result.is_usable:
        neutral_tensors(spec, tensors)
        return result
    _refuse_unlisted(result.missing, tensors)
    faults = (
        [f"{_count(result.missing, 'is', 'are')} missing: {_some(result.missing)}"] if result.missing else []
    )
    if result.mismatched:
        claims = [f"{name} is {stored}, must be {wanted}" for name, stored, wanted in result.mismatched]
        faults.append(f"{_count(claims, 'differs', 'differ')}: {_some(claims)}")
    named = f"({spec.architecture}): {'; '.join(faults)}"
    if spec.quantization is not None and spec.quantization.method == GGUF:
        raise TensorsMismatch(f"the tensors do not match the metadata {named}. Download the file again.")
    raise TensorsMismatch(
        f"the checkpoint does not match config.json {named}. "
        "Download config.json and the weights again, from the same revision."
    )


def _refuse_unlisted(missing: Iterable[str], tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a checkpoint that stores a layer quantized, though its config does not say so."""
    for name in missing:
        stored = (name + "_packed", name + "_blocks", name.removesuffix("weight") + "qweight")
        if quantized := next((other for other in stored if other in tensors), None):
            raise TensorsMismatch(
                f"{quantized} is quantized, but config.json has no quantization_config that says so of its "
                "layer. Take config.json from the same repository as the weights."
            )


def _count(names: Sequence[str], singular: str, plural: str) -> str:
    return f"1 tensor {singular}" if len(names) == 1 else f"{len(names)} tensors {plural}"


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
