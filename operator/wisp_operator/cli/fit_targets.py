"""Targets of ``wisp fit``: models of manifests, checkpoints, and published models by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wisp_operator.api import API_VERSION, KIND, InferenceModel, parse
from wisp_operator.api.manifests import read_files
from wisp_operator.core.fit.sources import Files
from wisp_operator.errors import SourceError
from wisp_operator.local.machine import hardware
from wisp_plan.checkpoint.index import TensorIndex
from wisp_plan.gguf.files import SUFFIX
from wisp_plan.presets import PUBLISHED, SHAPES, nearest_shape, shape_spec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.stored_presets import STORED_SCHEMES, stored_as

KINDS = "a manifest (a YAML file), a folder with a model, a GGUF file, hf://ORG/NAME"


@dataclass(frozen=True, slots=True)
class PublishedShape:
    """A published model's sizes, without a checkpoint.

    Attributes:
        name: key of :data:`wisp_plan.presets.SHAPES`.
        stored: format in which a checkpoint would store the weights; auto: as they were published.
    """

    name: str
    stored: str = "auto"

    def config(self) -> ModelSpec:
        """Return the model's spec."""
        return stored_as(shape_spec(self.name), self.stored)

    def tensors(self) -> TensorIndex | None:
        """Return None: there are no weights to read headers of."""
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """A model to check.

    Attributes:
        model: its resource, of a checkpoint or shape a made one.
        shape: the published model that it is; None: a checkpoint is read.
        is_manifest: True if the resource is the user's.
    """

    model: InferenceModel
    shape: PublishedShape | None = None
    is_manifest: bool = False

    @property
    def name(self) -> str:
        """Name for people."""
        return self.shape.name if self.shape else self.model.name

    def files(self) -> Files:
        """Return the source of config and headers.

        Raises:
            SourceError: only a pod can read them.
        """
        files = self.shape or hardware.files_of(self.model)
        if files is None:
            uri = self.model.spec.model.uri
            raise SourceError(f"{uri} can only be read by a pod; its first start measures it.")
        return files


def read_target(text: str, chosen: dict[str, Any]) -> list[Target]:
    """Return the models of a manifest, or the one of a folder, GGUF file, URI or shape.

    Args:
        text: the target; a file or folder outranks a shape of its name.
        chosen: fields that outrank ``spec.runtime``.

    Raises:
        SourceError: the target is none of these, or ``chosen`` has a format that nothing is rounded to.
        WispError: the manifest is not valid.
    """
    if page := re.match(r"https?://[^/]+/([\w.-]+/[\w.-]+)", text):
        raise SourceError(f"{text} is a web page. A repository of the hub is named by hf://{page[1]}.")
    if "://" not in text and not Path(text).exists():
        return [_shape(text, chosen)]
    if (stored := chosen.get("quantization")) in STORED_SCHEMES:
        raise SourceError(
            f"--quantization {stored} is a format of published checkpoints, which nothing is rounded to. "
            f"{text} is held as it is stored: leave it out, or name a shape, as in wisp fit qwen3-8b."
        )
    if "://" in text or Path(text).is_dir() or text.endswith(SUFFIX):
        uri = text if "://" in text else f"file://{Path(text).resolve()}"
        targets = [Target(_model(_name(uri), uri))]
    else:
        targets = [Target(manifest.model, is_manifest=True) for manifest in read_files([text])]
    return [replace(target, model=_with_runtime(target.model, chosen)) for target in targets]


def _shape(text: str, chosen: dict[str, Any]) -> Target:
    name, quantization = text.lower(), chosen.get("quantization", "auto")
    if name not in SHAPES:
        raise SourceError(_unknown(text))
    made = _with_runtime(_model(_name(name), f"file:///{name}"), chosen)
    if quantization not in STORED_SCHEMES:
        return Target(made, PublishedShape(name))
    return Target(_with_runtime(made, {"quantization": "auto"}), PublishedShape(name, quantization))


def _unknown(text: str) -> str:
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not Path(text).parent.exists():
        return f"{text} is not there. A repository of the hub is named by hf://{text}."
    return (
        f"{text} is not there. TARGET is {KINDS}, or a published model's shape{nearest_shape(text)}: "
        f"{', '.join(PUBLISHED)}."
    )


def _with_runtime(model: InferenceModel, fields: dict[str, Any]) -> InferenceModel:
    return replace(model, spec=replace(model.spec, runtime=replace(model.spec.runtime, **fields)))


def _model(name: str, uri: str) -> InferenceModel:
    metadata, spec = {"name": name}, {"model": {"uri": uri}}
    return parse({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


def _name(uri: str) -> str:
    """Name of a model that has none: the end of its URI, of a GGUF file without the suffix.

    Names begin with a letter: ``7b-chat`` becomes ``model-7b-chat``.
    """
    end = uri.rstrip("/").rpartition("/")[2].removesuffix(SUFFIX)
    words = re.sub(r"[^a-z0-9]+", "-", end.lower()).strip("-")
    name = words if words[:1].isalpha() else f"model-{words}"
    return name[:40].strip("-")
