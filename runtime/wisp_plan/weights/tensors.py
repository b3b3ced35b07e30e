"""Say which tensors a checkpoint of a model must have, and what of that is missing or different.

Names and shapes are those of Hugging Face: a projection is ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.errors import TensorsMismatch
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.ffn import DenseSpec
from wisp_plan.spec.model import ModelSpec

Role = Literal["embedding", "head", "norm", "projection", "bias"]
"""What a tensor is for; only a ``projection`` is ever quantized."""

COMPUTABLE_DTYPES = ("BF16", "F16", "F32")
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that a model needs: its name, its shape, and what it is for."""

    name: str
    shape: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside what its model needs.

    Attributes:
        missing: names of tensors that are not there.
        mismatched: (name, what it is, what it must be).
        extra: names of tensors that the model does not use; harmless.
    """

    missing: tuple[str, ...]
    mismatched: tuple[tuple[str, str, str], ...]
    extra: tuple[str, ...]

    @property
    def is_usable(self) -> bool:
        """Whether the model can be built from the checkpoint."""
        return not self.missing and not self.mismatched


def expected_tensors(spec: ModelSpec) -> Iterator[ExpectedTensor]:
    """List every tensor of ``spec``, from the embedding to the head.

    A model that ties its embeddings needs no ``lm_head.weight``.
    """
    yield ExpectedTensor("model.embed_tokens.weight", (spec.vocab, spec.hidden), "embedding")
    for index, layer in enumerate(spec.layers):
        prefix = f"model.layers.{index}."
        yield ExpectedTensor(prefix + "input_layernorm.weight", (spec.hidden,), "norm")
        yield from _attention(spec.hidden, layer.mixer, prefix + "self_attn.")
        yield ExpectedTensor(prefix + "post_attention_layernorm.weight", (spec.hidden,), "norm")
        yield from _mlp(spec.hidden, layer.ffn, prefix + "mlp.")
    yield ExpectedTensor("model.norm.weight", (spec.hidden,), "norm")
    if not spec.ties_embeddings:
        yield ExpectedTensor("lm_head.weight", (spec.vocab, spec.hidden), "head")


def _attention(hidden: int, mixer: object, prefix: str) -> Iterator[ExpectedTensor]:
    assert isinstance(mixer, AttentionSpec)
    for name, out in (("q_proj", mixer.query_size), ("k_proj", mixer.kv_size), ("v_proj", mixer.kv_size)):
        yield from _projection(prefix + name, out, hidden, mixer.has_qkv_bias)
    yield from _projection(prefix + "o_proj", hidden, mixer.query_size, mixer.has_output_bias)
    if mixer.has_qk_norm:
        yield ExpectedTensor(prefix + "q_norm.weight", (mixer.head_size,), "norm")
        yield ExpectedTensor(prefix + "k_norm.weight", (mixer.head_size,), "norm")


def _mlp(hidden: int, ffn: object, prefix: str) -> Iterator[ExpectedTensor]:
    assert isinstance(ffn, DenseSpec)
    yield from _projection(prefix + "gate_proj", ffn.inner, hidden, ffn.has_bias)
    yield from _projection(prefix + "up_proj", ffn.inner, hidden, ffn.has_bias)
    yield from _projection(prefix + "down_proj", hidden, ffn.inner, ffn.has_bias)


def _projection(name: str, out: int, into: int, has_bias: bool) -> Iterator[ExpectedTensor]:
    yield ExpectedTensor(name + ".weight", (out, into), "projection")
    if has_bias:
        yield ExpectedTensor(name + ".bias", (out,), "bias")


def compare(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Comparison:
    """Compare what is there with what ``spec`` needs.

    ``rotary_emb.inv_freq``, which old checkpoints store, and a stored copy of a tied head count as neither
    missing nor extra.
    """
    missing, mismatched, used = [], [], set()
    for wanted in expected_tensors(spec):
        used.add(wanted.name)
        found = tensors.get(wanted.name)
        if found is None:
            missing.append(wanted.name)
        elif found.shape != wanted.shape:
            mismatched.append((wanted.name, str(list(found.shape)), str(list(wanted.shape))))
        elif found.dtype not in COMPUTABLE_DTYPES:
            mismatched.append((wanted.name, found.dtype, " or ".join(COMPUTABLE_DTYPES)))
    extra = [name for name in tensors if name not in used and not _is_harmless(name)]
    return Comparison(tuple(missing), tuple(mismatched), tuple(sorted(extra)))


def _is_harmless(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Comparison:
    """Compare like :func:`compare`, and refuse what cannot be built.

    Raises:
        TensorsMismatch: tensors are missing, or have another shape or a dtype we cannot compute with.
    """
    result = compare(spec, tensors)
    if result.is_usable:
        return result
    faults = (
        [f"{_count(result.missing, 'is', 'are')} missing: {_some(result.missing)}"] if result.missing else []
    )
    if result.mismatched:
        claims = [f"{name} is {found}, must be {wanted}" for name, found, wanted in result.mismatched]
        faults.append(f"{_count(claims, 'differs', 'differ')}: {_some(claims)}")
    raise TensorsMismatch(
        f"the checkpoint does not match config.json ({spec.architecture}): {'; '.join(faults)}. "
        "Download config.json and the weights again, from the same revision."
    )


def _count(names: Sequence[str], one: str, many: str) -> str:
    return f"1 tensor {one}" if len(names) == 1 else f"{len(names)} tensors {many}"


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
